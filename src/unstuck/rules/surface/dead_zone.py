"""S01: a region of the plane without gradient, away from where descent should end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.rule import Rule
from unstuck.rules.surface._words import box, percent, plane, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Region, Surface

rule = Rule(
    code="S01",
    name="dead-zone",
    title="a region of the loss without gradient, away from its optimum",
    severity=Severity.ERROR,
    explains=("S04",),
)

CAUSE = "An optimizer that starts or lands there gets no gradient and stays where it is."
FIX = (
    "Give the flat part a slope (softplus instead of relu, a loss on logits instead of on saturated "
    "probabilities, a small additive term), or start where there is a gradient."
)
ABOVE = 1e-3
"""A region is above the optimum if it is at least this share of the loss's range higher."""
ENOUGH = 0.02


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """Connected regions of zero gradient that are neither the floor of the loss nor the desired region."""
    found = [(_share_outside(surface, region), region) for region in surface.dead]
    guilty = [(share, region) for share, region in found if share >= ENOUGH and not _is_detached(surface, region)]
    if guilty:
        yield _finding(surface, sorted(guilty, key=lambda pair: -pair[0]))


def _share_outside(surface: Surface, region: Region) -> float:
    """The share of the grid that is dead and not where descent should end, such as a floor."""
    if surface.desired is not None:
        return float((region.cells & ~surface.desired.cells).mean())
    height = surface.highest - surface.lowest
    if not height:
        return region.share
    above = surface.value > surface.lowest + ABOVE * height
    return float((region.cells & above).mean())


def _is_detached(surface: Surface, region: Region) -> bool:
    """The loss does have a slope there, but autograd misses it: another rule reports that."""
    return any(
        not any(wrong.autograd)
        and all(low <= at <= high for low, at, high in zip(region.low, wrong.at, region.high, strict=True))
        for wrong in surface.disagreements
    )


def _finding(surface: Surface, zones: list[tuple[float, Region]]) -> Finding:
    share, largest = sum(share for share, _ in zones), zones[0][1]
    level = f", where the loss is {largest.value:.4g}" if largest.value is not None else ""
    lowest = "" if surface.desired is not None else f" (its lowest value is {surface.lowest:.4g})"
    wish = ", outside the desired region" if surface.desired is not None else ""
    return rule.finding(
        f"{surface.name} has no gradient over {percent(share)} of the {plane(surface)}: "
        f"{box(surface, largest)}{wish}{level}{lowest}.",
        cause=CAUSE,
        fix=FIX,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[
            Evidence("share without gradient", round(100 * share, 1), "%", 100 * ENOUGH),
            Evidence("where", [box(surface, region) for _, region in zones]),
        ],
    )
