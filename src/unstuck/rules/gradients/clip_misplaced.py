"""G01: gradients clipped after the step, before backward, or when there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Backward, Clip, Event, OptimizerStep, Place, StepSkipped, ZeroGrad
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared import order
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.reader.knowledge import LARGEST_LIMIT
from unstuck.source.trace import Happened, Path

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="G01",
    name="clip-misplaced",
    title="gradients clipped after step(), before backward(), or when there are none",
    severity=Severity.ERROR,
    explains=("G05", "G08", "G10", "G18", "M14", "O22", "O25", "O26", "R08"),
    needs=(Clip,),
)

FIX = "Clip between backward() and step() (with GradScaler: after unscale_)."
AFTER_STEP = "step() has already applied the unclipped gradients, so clipping them afterwards has no effect."
USED_UP = (
    "parameters() returns a generator. Stored in a variable, it is exhausted by the first call that iterates "
    "over it, and later calls get nothing."
)
BEFORE_BACKWARD = (
    "backward() has not computed the gradients yet, so there is nothing to clip and step() uses them unclipped."
)
OTHERS = (
    "The clipped parameters are not the ones that backward() computes gradients for, so step() uses those unclipped."
)
SAID = {
    USED_UP: "Clipping has no effect: it received no parameters.",
    OTHERS: "Clipping has no effect: none of its parameters has a gradient.",
}
FIXES = {
    USED_UP: "Pass model.parameters() directly, or store list(model.parameters()).",
    OTHERS: "Pass the parameters of the model you train.",
}
STEADY = 3


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Misplaced on every path on which the call occurs."""
    for ways in order.readable_loops(script):
        for place, cause in order.always(ways, _misplaced).items():
            fix = fix_with(FIX, _moved(script, ways, place), "safe")
            yield _finding(_message(cause), cause, place, fix=fix)


def _moved(script: Script, ways: Sequence[Path], clip: Place) -> Edits | None:
    """The clip with the step it belongs before, if that is the same step on every path."""
    steps = {step for way in ways for step in _steps_beside(order.gradient_events(way), clip)}
    step = steps.pop() if len(steps) == 1 else None
    return Editor(script).move_before(clip, step) if step is not None else None


def _steps_beside(items: Sequence[Happened], clip: Place) -> Iterator[Place | None]:
    """Steps of the clipped parameters before or after each clip; None for a step through a scaler."""
    clips = [item for item in items if isinstance(item.event, Clip) and item.event.place == clip]
    for item in items if clips else ():
        if isinstance(item.event, OptimizerStep) and order.concerns(clips[0], item):
            yield None if item.event.through_scaler else item.event.place


def _misplaced(path: Path) -> order.Opinion:
    items = order.gradient_events(path)
    opinion = order.Opinion()
    for position, item in enumerate(items):
        if isinstance(item.event, Clip) and item.event.place is not None:
            before, after = _before(items[:position], item), _next(items[position + 1 :])
            cause = _verdict(before, after)
            if cause:
                opinion.guilty[item.event.place] = cause
            elif before is not None and after is not None:
                opinion.innocent.add(item.event.place)
    return opinion


def _before(earlier: Sequence[Happened], clip: Happened) -> Event | None:
    """The last thing that happened to the gradients that are clipped."""
    for item in reversed(earlier):
        if isinstance(item.event, Backward) or (not isinstance(item.event, Clip) and order.concerns(item, clip)):
            return item.event
    return None


def _next(later: Sequence[Happened]) -> Event | None:
    return next((item.event for item in later if not isinstance(item.event, Clip)), None)


def _verdict(before: Event | None, after: Event | None) -> str:
    """Why a clip between these two events has no effect; None when it has one, or when that is uncertain."""
    if isinstance(after, OptimizerStep | StepSkipped) or before is None or after is None:
        return ""
    if isinstance(before, OptimizerStep):
        return AFTER_STEP
    if isinstance(before, ZeroGrad) and isinstance(after, Backward):
        return BEFORE_BACKWARD
    return ""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Clips without gradients, or on gradients that a step had already used."""
    events = [event for event in record.events if isinstance(event, order.GRADIENT_EVENTS)]
    alone = len({step.optimizer for step in record.of(OptimizerStep)}) <= 1
    by_place: dict[Place | None, list[tuple[Clip, str]]] = {}
    for before, event, after in _with_neighbours(events):
        if event.limit is not None and event.limit < LARGEST_LIMIT:
            by_place.setdefault(event.place, []).append((event, _measured(before, event, after, alone)))
    for place, clips in by_place.items():
        # The first iteration has no step before it and the last none after it: those two may look fine.
        causes = [cause for _, cause in clips if cause]
        if len(causes) >= STEADY and len(causes) >= len(clips) - 2:
            cause = max(set(causes), key=causes.count)
            steps = [event for event in events if isinstance(event, OptimizerStep)]
            numbers = _numbers([clip for clip, _ in clips], steps)
            fix = FIXES.get(cause, FIX)
            yield _finding(_message(cause), cause, place, numbers, fix)


def _with_neighbours(events: Sequence[Event]) -> Iterator[tuple[Event | None, Clip, Event | None]]:
    """Every clip, with the events before and after it that are not clips."""
    before: Event | None = None
    clips: list[Clip] = []
    for event in (*events, None):
        if isinstance(event, Clip):
            clips.append(event)
            continue
        yield from ((before, clip, event) for clip in clips)
        before, clips = event, []


def _measured(before: Event | None, clip: Clip, after: Event | None, alone: bool) -> str:
    """Why a clip had no effect, by what came before and after it."""
    if clip.parameters == 0:
        return USED_UP
    if not clip.parameters or not alone:
        # With unknown parameters or several optimizers, the neighbouring events prove nothing.
        return ""
    if clip.with_grad == 0 and not isinstance(before, OptimizerStep):
        return OTHERS if isinstance(before, Backward) else BEFORE_BACKWARD
    return _verdict(before, after)


def _numbers(clips: Sequence[Clip], steps: Sequence[OptimizerStep]) -> list[Evidence]:
    last = clips[-1]
    evidence = [Evidence("clip calls recorded", len(clips))]
    if last.with_grad is not None and last.parameters is not None:
        evidence.append(Evidence("parameters with a gradient when clipped", f"{last.with_grad} of {last.parameters}"))
    norms = [step.grad_norm for step in steps if step.grad_norm is not None]
    if norms and last.limit is not None:
        evidence.append(Evidence("largest norm that step() applied unclipped", max(norms), "", last.limit))
    return evidence


def _message(cause: str) -> str:
    if cause in SAID:
        return SAID[cause]
    where = "after step()" if cause is AFTER_STEP else "before backward() has computed them"
    return f"Gradients are clipped {where}, so clipping has no effect."


def _finding(
    message: str,
    cause: str,
    place: Place | None,
    evidence: Sequence[Evidence] = (),
    fix: str | Fix = FIX,
) -> Finding:
    subject = Subject("call", f"gradient clipping at {place}")
    return rule.finding(message, cause=cause, fix=fix, subject=subject, place=place, evidence=evidence)


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The same limit, before the step."""
    from unstuck.interventions import ClipGradients

    limits = [item.threshold for item in finding.evidence if isinstance(item.threshold, float)]
    yield (ClipGradients(limits[0] if limits else 1.0),)
