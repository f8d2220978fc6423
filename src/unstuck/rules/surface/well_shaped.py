"""S06: none of the other patterns, and descent reaches the lowest value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.rule import Rule
from unstuck.rules.surface._words import percent, plane, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Surface

rule = Rule(
    code="S06",
    name="well-shaped",
    title="nothing is wrong with the shape of the loss: the gradient leads where it should",
    severity=Severity.ADVICE,
    good_news=True,
)

CAUSE = "If the run does not learn, this loss on these inputs is not the reason."
FIX = "Nothing. Look at the run next: unstuck run train.py"
ENOUGH = 0.9
GOOD = ("desired region", "minimum", "lowest edge")


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
    where = "to the desired region" if surface.desired is not None else "to its lowest value"
    yield rule.finding(
        f"{surface.name} is finite everywhere, and its gradient leads from {percent(share)} of {arrivals.starts} "
        f"starts {where}.{_floor(surface)}",
        cause=CAUSE,
        fix=FIX,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[Evidence(f"starts it leads {where}", round(100 * share, 1), "%", 100 * ENOUGH)],
    )


def _floor(surface: Surface) -> str:
    flat = sum(region.share for region in surface.dead)
    if not flat:
        return ""
    return f" It is flat at its lowest over {percent(flat)} of the {plane(surface)}: there is no gradient there."
