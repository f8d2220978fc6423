"""G11: gradients are cleared at every micro-step, so a step uses only those of the last one."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import OptimizerStep, Place, ZeroGrad
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import loop_order
from unstuck.rules.shared.accumulation import STEADY, StepWindow, Window, close, micro_windows, usual, windows
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, both, fix_with
from unstuck.source.trace import Located

rule = Rule(
    code="G11",
    name="zero-inside-window",
    title="zero_grad() at every micro-step of an accumulation window",
    severity=Severity.ERROR,
    explains=("O07", "O22"),
    needs=(ZeroGrad, OptimizerStep),
)

CAUSE = (
    "Each iteration discards the gradients of the one before, so a step uses one micro-batch and the work of "
    "the other {others} is lost."
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A window that clears the gradients wherever it runs backward."""
    for window in windows(script):
        steps = window.once(OptimizerStep)
        for zero in window.every_iteration(ZeroGrad) if window.complete and steps else ():
            if _clears_in_every_iteration(window, zero) and all(
                loop_order.concerns(zero.item, step.item) for step in steps
            ):
                yield _finding(script, window, zero)


def _clears_in_every_iteration(window: Window, zero: Located) -> bool:
    """Wherever backward runs, but not between it and the step: that loses everything and has a rule of its own."""
    first = window.backwards[0]
    steps = [step.item.time for step in window.once(OptimizerStep)]
    wiped = first.item.time < zero.item.time and (not window.guard or zero.item.time < max(steps))
    around = {(branch.condition, outcome) for branch, outcome in first.branches}
    return not wiped and {(branch.condition, outcome) for branch, outcome in zero.branches} <= around


def _finding(script: Script, window: Window, zero: Located) -> Finding:
    others = str(int(window.every) - 1) if window.every.isdigit() else f"{window.every} - 1"
    steps = [step.item.event.place for step in window.once(OptimizerStep)]
    where = f"under `if {window.guard}`, after step()" if window.guard else "before the inner loop"
    return rule.finding(
        f"zero_grad() runs in every iteration, but step() {window.when}.",
        cause=CAUSE.format(others=others),
        fix=fix_with(f"Move zero_grad() {where}.", _moved(script, window, zero.item.event.place, steps), "unsafe"),
        subject=Subject.at("loop", "accumulation", window.loop.place),
        place=zero.item.event.place,
        related=steps,
    )


def _moved(script: Script, window: Window, zero: Place | None, steps: list[Place | None]) -> Edits | None:
    """Move the call after the step or before the inner loop, unless one is already there."""
    editor = Editor(script)
    step = steps[0]
    if zero is None or step is None or len(steps) > 1 or zero.function != step.function:
        return None
    if window.once(ZeroGrad):
        return editor.delete(zero)
    text = editor.text_of(zero)
    if text is None or editor.call_at(zero) is None:
        return None
    target = editor.insert_after(step, text) if window.guard else editor.insert_before(window.loop.place, text)
    return both(editor.delete(zero), target)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Windows in which every backward was cleared, so the step used only the last one."""
    windows = micro_windows(record)
    emptied = [window for window in windows if _cleared_between(window)]
    ratios = [share for window in emptied if (share := window.norm_ratio) is not None]
    # Gradients that were saved and restored, as for privacy or per task, are not those of the last backward.
    used_last = all(close(share, 1.0) for share in ratios) if ratios else any(w.backwards[-1].scaled for w in emptied)
    if len(emptied) < STEADY or len(emptied) < 0.8 * len(windows) or not used_last:
        return
    every = usual([len(window.backwards) for window in emptied])
    zero = _cleared_between(emptied[-1])[-1]
    yield rule.finding(
        f"zero_grad() discarded {every - 1} of every {every} backward passes before a step.",
        cause=CAUSE.format(others=every - 1),
        fix="Move zero_grad() after step().",
        subject=Subject.at("call", "zero_grad", zero.place),
        place=zero.place,
        related=[emptied[-1].step.place],
        evidence=[
            Evidence("backward passes for each step", every),
            Evidence("backward passes that a step uses", 1),
            Evidence("steps recorded", len(windows)),
        ],
    )


def _cleared_between(window: StepWindow) -> list[ZeroGrad]:
    """The zero_grad() after each backward but the last; empty if one of them has none."""
    found: list[ZeroGrad] = []
    for _, _, events in window.between():
        zeros = [event for event in events if isinstance(event, ZeroGrad) and event.cleared]
        if not zeros:
            return []
        found.append(zeros[-1])
    return found


rule.remedied_by(with_change("KeepGradients"))
