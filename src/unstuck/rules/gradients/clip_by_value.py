"""G06: gradients clipped element by element, which changes their direction; clipping by norm does not."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Clip, OptimizerStep
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.dynamics import known, median
from unstuck.source import Script
from unstuck.source.facts import Called
from unstuck.source.reader.scope import dotted
from unstuck.source.values import Const

rule = Rule(
    code="G06",
    name="clip-by-value",
    title="gradients clipped element by element, which changes their direction",
    severity=Severity.ADVICE,
    needs=(Clip, OptimizerStep),
)

CAUSE = (
    "Each element is cut off separately, so large and small elements end up alike and the update points "
    "elsewhere. Clipping by norm shortens the whole gradient and keeps its direction."
)
FIX = "Use torch.nn.utils.clip_grad_norm_(parameters, max_norm), with max_norm near the usual norm of the gradient."
STEADY = 3
TURNED = 10.0
"""Degrees; a smaller change is lost in the noise of the batches."""
RARELY_ACTS = 10.0
"""Only exploding gradients have elements above this; a limit that high is a safety net."""


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """`clip_grad_value_` or a clamp of `.grad`, at a limit that ordinary gradients reach."""
    for call in script.facts.calls:
        if call.loops and _clips_values(call):
            limit = _limit(call)
            if limit is not None and limit < RARELY_ACTS:
                yield _finding(call, limit)


def _clips_values(call: Called) -> bool:
    if call.last == "clip_grad_value_" and call.name.startswith("torch."):
        return True
    return call.last in ("clamp_", "clip_") and ".grad" in dotted(call.node.func)


def _limit(call: Called) -> float | None:
    """The limit, where it is a number in the text."""
    names = ("clip_value", "max")
    given = [call.kwargs[name] for name in names if name in call.kwargs] or list(call.args[-1:])
    value = given[0].value if given and isinstance(given[0], Const) else None
    return abs(float(value)) if isinstance(value, int | float) else None


def _finding(call: Called, limit: float) -> Finding:
    return rule.finding(
        f"Gradients are clipped element by element at {limit:g}, which changes their direction.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject.at("call", "clipping by value", call.place),
        place=call.place,
        evidence=[Evidence("limit", limit)],
        confidence=Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Clips by value that changed the direction of the gradient, as measured."""
    by_place: dict[object, list[Clip]] = {}
    for event in record.of(Clip):
        if event.kind == "value":
            by_place.setdefault(event.place and event.place.key, []).append(event)
    for clips in by_place.values():
        angles = known([clip.turned for clip in clips])
        turned = median(angles)
        if len(angles) >= STEADY and turned is not None and turned >= TURNED:
            limit = clips[-1].limit
            yield rule.finding(
                f"Clipping element by element at {limit:g} rotated the gradient by {turned:.0f} degrees.",
                cause=CAUSE,
                fix=FIX,
                subject=Subject.at("call", "clipping by value", clips[-1].place),
                place=clips[-1].place,
                evidence=[
                    Evidence("limit", limit or 0.0),
                    Evidence("rotated by (median)", f"{turned:.0f} degrees"),
                    Evidence("rotated by (largest)", f"{max(angles):.0f} degrees"),
                    Evidence("clips measured", len(angles)),
                ],
            )
