"""G06: gradients clipped element by element, which turns their direction, where clipping by norm is meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Clip, OptimizerStep
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared.dynamics import known, median
from unstuck.source.facts import Called
from unstuck.source.reader.base import dotted
from unstuck.source.values import Const

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="G06",
    name="clip-by-value",
    title="gradients clipped element by element, which changes their direction",
    severity=Severity.ADVICE,
    needs=(Clip, OptimizerStep),
)

CAUSE = (
    "Each element is cut off on its own, so the large ones lose their lead over the small ones and the update points "
    "elsewhere; clipping by norm shortens the whole gradient and keeps its direction."
)
FIX = "Use torch.nn.utils.clip_grad_norm_(parameters, max_norm), with max_norm near the usual norm of the gradient."
STEADY = 3
TURNED = 10.0
"""Degrees; less than this is lost in the noise of the batches."""
RARELY_ACTS = 10.0
"""Elements of a gradient above this are an explosion, and cutting those off is a safety net, not a habit."""


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """`clip_grad_value_` or a clamp of `.grad`, at a limit that gradients reach in ordinary training."""
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
    """The largest size an element may keep, where that is a number in the text."""
    names = ("clip_value", "max")
    given = [call.kwargs[name] for name in names if name in call.kwargs] or list(call.args[-1:])
    value = given[0].value if given and isinstance(given[0], Const) else None
    return abs(float(value)) if isinstance(value, int | float) else None


def _finding(call: Called, limit: float) -> Finding:
    return rule.finding(
        f"Gradients are clipped element by element at {limit:g}, which changes their direction.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject("call", f"clipping by value at {call.place}"),
        place=call.place,
        evidence=[Evidence("limit", limit)],
        confidence=Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Clippings by value that turned the gradient, measured."""
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
                f"Clipping element by element at {limit:g} turned the gradient by {turned:.0f} degrees.",
                cause=CAUSE,
                fix=FIX,
                subject=Subject("call", f"clipping by value at {clips[-1].place}"),
                place=clips[-1].place,
                evidence=[
                    Evidence("limit", limit or 0.0),
                    Evidence("turned by, as a median", f"{turned:.0f} degrees"),
                    Evidence("turned by at most", f"{max(angles):.0f} degrees"),
                    Evidence("clippings measured", len(angles)),
                ],
            )
