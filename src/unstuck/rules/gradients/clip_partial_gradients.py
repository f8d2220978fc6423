"""G02: gradients are clipped at every micro-step of an accumulation window, before their sum is complete."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unstuck.events import Clip, OptimizerStep, Place, Unscale
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.accumulation import STEADY, StepWindow, Window, micro_windows, usual, windows
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, both, fix_with
from unstuck.source.trace import Located

rule = Rule(
    code="G02",
    name="clip-partial-gradients",
    title="gradients clipped at every micro-step of an accumulation window",
    severity=Severity.WARNING,
    explains=("G05",),
    needs=(Clip, OptimizerStep),
)

CAUSE = (
    "The partial sum is cut in each iteration, so early micro-batches shrink again and again and late ones "
    "dominate the step. Only the norm of the complete gradient should be limited."
)
MAY_BE_THE_GUARD = pattern(r"sync|accum|bound|updat|step|last|turn|iter", re.I)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A clip after backward, in a window, outside the condition of the step."""
    if "clip_grad" not in script.text:
        return
    for window in windows(script):
        for clip in window.every_iteration(Clip):
            if _clips_partial_sums(window, clip):
                yield _finding(script, window, clip)


def _clips_partial_sums(window: Window, clip: Located) -> bool:
    """After the backward of each iteration, and under no condition that may select the last iteration of a window."""
    first = window.backwards[0]
    shared = {(branch.condition, outcome) for branch, outcome in first.branches}
    own = [branch for branch, outcome in clip.branches if (branch.condition, outcome) not in shared]
    steady = all(not branch.varies and not MAY_BE_THE_GUARD.search(branch.condition) for branch in own)
    return steady and clip.item.time > first.item.time


def _finding(script: Script, window: Window, clip: Located) -> Finding:
    place, steps = clip.item.event.place, [step.item.event.place for step in window.once(OptimizerStep)]
    where = f"under `if {window.guard}`, right before step()" if window.guard else "after the inner loop, before step()"
    return rule.finding(
        f"Gradients are clipped in every iteration, but step() runs {window.when}.",
        cause=CAUSE,
        fix=fix_with(f"Clip {where}.", _moved(script, window, clip, place, steps), "safe"),
        subject=Subject.at("loop", "clipping", place),
        place=place,
        related=steps,
        confidence=Confidence.LIKELY,
    )


def _moved(
    script: Script, window: Window, clip: Located, place: Place | None, steps: list[Place | None]
) -> Edits | None:
    """Move the statement before the only step, if nothing but the guard is in between."""
    editor, step = Editor(script), steps[0]
    if place is None or step is None or len(steps) > 1 or place.function != step.function:
        return None
    if [*window.every_iteration(Unscale), *window.once(Unscale)]:
        return None
    statement, around = editor.statement_at(place), {branch.condition for branch, _ in window.backwards[0].branches}
    text = editor.text_of(statement) if statement is not None else None
    if text is None or "\n" in text or any(branch.condition not in around for branch, _ in clip.branches):
        return None
    return both(editor.delete(place), editor.insert_before(step, text))


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Clips that cut the gradient between two backwards of one window."""
    windows = micro_windows(record)
    cut = [clips for window in windows if (clips := _partial_cuts(window))]
    if len(cut) < STEADY or len(cut) < len(windows) / 2:
        return
    last, every = cut[-1][-1], usual([len(window.backwards) for window in windows])
    evidence = [
        Evidence("backward passes for each step", every),
        Evidence("steps with a partial gradient cut", f"{len(cut)} of {len(windows)}"),
    ]
    if last.norm is not None and last.limit is not None:
        evidence.append(Evidence("norm of the last partial sum that was cut", last.norm, "", last.limit))
    yield rule.finding(
        f"Gradients are clipped after each of {every} backward passes, but step() runs once.",
        cause=CAUSE,
        fix="Clip once per window, right before step().",
        subject=Subject.at("loop", "clipping", last.place),
        place=last.place,
        related=[windows[-1].step.place],
        evidence=evidence,
    )


def _partial_cuts(window: StepWindow) -> list[Clip]:
    """Clips before the last backward that did shorten the gradient."""
    clips = [event for _, _, events in window.between() for event in events if isinstance(event, Clip)]
    return [clip for clip in clips if clip.norm is not None and clip.limit is not None and clip.norm > clip.limit]
