"""S06: none of the other patterns, and descent arrives, over the inputs that were tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.findings.landmarks import End
from unstuck.rule import Rule
from unstuck.rules.surface._words import percent, plane, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Surface

rule = Rule(
    code="S06",
    name="well-shaped",
    title="the loss is finite and descent arrives, over the inputs that were tried",
    severity=Severity.ADVICE,
    good_news=True,
)

CAUSE = (
    "The loss was computed for synthetic values of these inputs in this range, with all others fixed. Your data, your "
    "targets, the model and values outside the range were not tested."
)
FIX = "Nothing here. Look at the run next: unstuck run train.py"
ENOUGH = 0.9
FADED = 0.1
"""A gradient below this share of the largest is worth a word where the loss is highest."""
GOOD = (End.DESIRED, End.MINIMUM, End.LOWEST_EDGE)


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """Descent from nearly everywhere ends in the desired region or, without one, at the lowest value."""
    arrivals = surface.arrivals
    if arrivals is None or surface.highest <= surface.lowest:
        return
    good = GOOD[:1] if surface.desired is not None else GOOD
    share = sum(arrivals.ended.get(word, 0.0) for word in good)
    if share < ENOUGH:
        return
    places = len(arrivals.destinations)
    where = "to the desired region" if surface.desired is not None else "to its lowest value"
    which = f", in one of {places} separate places" if places > 1 and surface.desired is None else ""
    yield rule.finding(
        f"{surface.name} is finite at all {surface.value.size:,} points over {surface.extent}, and its gradient leads "
        f"from {percent(share)} of {arrivals.starts} starts {where}{which}{_untested(surface)}."
        f"{_floor(surface)}{_faded(surface)}",
        cause=CAUSE,
        fix=FIX,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[Evidence(f"starts it leads {where}", round(100 * share, 1), "%", 100 * ENOUGH)],
    )


def _untested(surface: Surface) -> str:
    if surface.desired is not None:
        return ""
    return "; whether that is the answer you want was not tested (`--desired` names it)"


def _faded(surface: Surface) -> str:
    share = surface.gradient_where_highest
    if share is None or share >= FADED:
        return ""
    return f" Note that where the loss is highest its gradient is {percent(share)} of its largest."


def _floor(surface: Surface) -> str:
    flat = sum(region.share for region in surface.dead)
    if not flat:
        return ""
    return f" It is flat at its lowest over {percent(flat)} of the {plane(surface)}: there is no gradient there."
