"""G01: gradients clipped after the step, before backward, or when there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import Backward, Clip, Event, OptimizerStep, Place, StepSkipped, ZeroGrad
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import loop_order
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.reader.knowledge import LARGEST_LIMIT
from unstuck.source.trace import Happened, Hidden, Path


class Misplaced(Variant):
    """Why a clip has no effect."""

    AFTER_STEP = "after-step", "gradients clipped after step() has applied them"
    BEFORE_BACKWARD = "before-backward", "gradients clipped before backward() has computed them"
    NO_PARAMETERS = "no-parameters", "clipping received no parameters"
    NO_GRADIENTS = "no-gradients", "none of the clipped parameters has a gradient"


rule = Rule(
    code="G01",
    name="clip-misplaced",
    title="gradients clipped after step(), before backward(), or when there are none",
    severity=Severity.ERROR,
    explains=("G05", "G08", "G10", "G18", "M14", "O22", "O25", "O26", "R08"),
    needs=(Clip,),
    variants=Misplaced.titles(),
)

FIX = "Clip between backward() and step() (with GradScaler: after unscale_)."
MESSAGES = {
    Misplaced.AFTER_STEP: "Gradients are clipped after step(), so clipping has no effect.",
    Misplaced.BEFORE_BACKWARD: "Gradients are clipped before backward() has computed them, so clipping has no effect.",
    Misplaced.NO_PARAMETERS: "Clipping has no effect: it received no parameters.",
    Misplaced.NO_GRADIENTS: "Clipping has no effect: none of its parameters has a gradient.",
}
CAUSES = {
    Misplaced.AFTER_STEP: "step() has already applied the unclipped gradients, so clipping them afterwards has no "
    "effect.",
    Misplaced.BEFORE_BACKWARD: "backward() has not computed the gradients yet, so there is nothing to clip and step() "
    "uses them unclipped.",
    Misplaced.NO_PARAMETERS: "parameters() returns a generator. Stored in a variable, it is exhausted by the first "
    "call that iterates over it, and later calls get nothing.",
    Misplaced.NO_GRADIENTS: "The clipped parameters are not the ones that backward() computes gradients for, so step() "
    "uses those unclipped.",
}
FIXES = {
    Misplaced.NO_PARAMETERS: "Pass model.parameters() directly, or store list(model.parameters()).",
    Misplaced.NO_GRADIENTS: "Pass the parameters of the model you train.",
}
STEADY = 3


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Misplaced on every path on which the call occurs."""
    for ways in (*loop_order.readable_loops(script), *loop_order.readable_functions(script)):
        for place, variant in loop_order.always(ways, _misplaced).items():
            fix = fix_with(FIX, _moved(script, ways, place), "safe")
            yield _finding(Misplaced(variant), place, fix)


def _moved(script: Script, ways: Sequence[Path], clip: Place) -> Edits | None:
    """The clip with the step it belongs before, if that is the same step on every path."""
    steps = {step for way in ways for step in _steps_beside(loop_order.gradient_events(way), clip)}
    step = steps.pop() if len(steps) == 1 else None
    return Editor(script).move_before(clip, step) if step is not None else None


def _steps_beside(items: Sequence[Happened], clip: Place) -> Iterator[Place | None]:
    """Steps of the clipped parameters before or after each clip; None for a step through a scaler."""
    clips = [item for item in items if isinstance(item.event, Clip) and item.event.place == clip]
    for item in items if clips else ():
        if isinstance(item.event, OptimizerStep) and loop_order.concerns(clips[0], item):
            yield None if item.event.through_scaler else item.event.place


def _misplaced(path: Path) -> loop_order.Opinion:
    items = [item for item, _ in loop_order.gradient_items(path)]
    opinion = loop_order.Opinion()
    for position, item in enumerate(items):
        if isinstance(item, Happened) and isinstance(item.event, Clip) and item.event.place is not None:
            before, after = _before(items[:position], item), _next(items[position + 1 :])
            variant = _misplacement(before, after)
            if variant is not None:
                opinion.guilty[item.event.place] = variant
            elif before is not None and after is not None:
                opinion.innocent.add(item.event.place)
    return opinion


def _before(earlier: Sequence[Happened | Hidden], clip: Happened) -> Event | None:
    """The last thing that happened to the gradients that are clipped; None if that is uncertain."""
    for item in reversed(earlier):
        if isinstance(item, Hidden):
            return None
        if isinstance(item.event, Backward) or (not isinstance(item.event, Clip) and loop_order.concerns(item, clip)):
            return item.event
    return None


def _next(later: Sequence[Happened | Hidden]) -> Event | None:
    events = (item.event if isinstance(item, Happened) else None for item in later)
    return next((event for event in events if not isinstance(event, Clip)), None)


def _misplacement(before: Event | None, after: Event | None) -> Misplaced | None:
    """Why a clip between these two events has no effect; None when it has one, or when that is uncertain."""
    if isinstance(after, OptimizerStep | StepSkipped) or before is None or after is None:
        return None
    if isinstance(before, OptimizerStep):
        return Misplaced.AFTER_STEP
    if isinstance(before, ZeroGrad) and isinstance(after, Backward):
        return Misplaced.BEFORE_BACKWARD
    return None


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Clips without gradients, or on gradients that a step had already used."""
    events = [event for event in record.events if isinstance(event, loop_order.GRADIENT_EVENTS)]
    alone = len({step.optimizer for step in record.of(OptimizerStep)}) <= 1
    by_place: dict[Place | None, list[tuple[Clip, Misplaced | None]]] = {}
    for before, event, after in _with_neighbours(events):
        if event.limit is not None and event.limit < LARGEST_LIMIT:
            by_place.setdefault(event.place, []).append((event, _measured(before, event, after, alone)))
    for place, clips in by_place.items():
        # The first iteration has no step before it and the last none after it: those two may look fine.
        found = [variant for _, variant in clips if variant is not None]
        if len(found) >= STEADY and len(found) >= len(clips) - 2:
            variant = max(set(found), key=found.count)
            steps = [event for event in events if isinstance(event, OptimizerStep)]
            numbers = _numbers([clip for clip, _ in clips], steps)
            yield _finding(variant, place, FIXES.get(variant, FIX), numbers)


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


def _measured(before: Event | None, clip: Clip, after: Event | None, alone: bool) -> Misplaced | None:
    """Why a clip had no effect, by what came before and after it."""
    if clip.parameters == 0:
        return Misplaced.NO_PARAMETERS
    if not clip.parameters or not alone:
        # With unknown parameters or several optimizers, the neighbouring events prove nothing.
        return None
    if clip.with_grad == 0 and not isinstance(before, OptimizerStep):
        return Misplaced.NO_GRADIENTS if isinstance(before, Backward) else Misplaced.BEFORE_BACKWARD
    return _misplacement(before, after)


def _numbers(clips: Sequence[Clip], steps: Sequence[OptimizerStep]) -> list[Evidence]:
    last = clips[-1]
    evidence = [Evidence("clip calls recorded", len(clips))]
    if last.with_grad is not None and last.parameters is not None:
        evidence.append(Evidence("parameters with a gradient when clipped", f"{last.with_grad} of {last.parameters}"))
    norms = [step.grad_norm for step in steps if step.grad_norm is not None]
    if norms and last.limit is not None:
        evidence.append(Evidence("largest norm that step() applied unclipped", max(norms), "", last.limit))
    return evidence


def _finding(
    variant: Misplaced, place: Place | None, fix: str | Fix = FIX, evidence: Sequence[Evidence] = ()
) -> Finding:
    return rule.finding(
        MESSAGES[variant],
        cause=CAUSES[variant],
        fix=fix,
        subject=Subject.at("call", "gradient clipping", place),
        place=place,
        evidence=evidence,
        variant=variant,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """The same limit, before the step."""
    from unstuck.interventions import ClipGradients

    limits = [item.threshold for item in finding.evidence if isinstance(item.threshold, float)]
    yield (ClipGradients(limits[0] if limits else 1.0),)
