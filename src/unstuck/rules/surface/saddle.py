"""S03: a stationary point with curvature of both signs, as every product of two factors has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.findings.landmarks import End, PointKind
from unstuck.rule import Rule
from unstuck.rules.surface._words import percent, point, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Stationary, Surface

rule = Rule(
    code="S03",
    name="saddle",
    title="a saddle: descent stalls at a point that is not a minimum",
    severity=Severity.WARNING,
)

CAUSE_OF_PRODUCT = (
    "The loss is a product, and the chain rule gives each factor a gradient in proportion to the other: where "
    "one is near 0, the other learns nothing, and where both are, nothing moves."
)
CAUSE = "Near it the gradient is close to 0 although the loss is not at its minimum, so descent slows down or stalls."
FIX_OF_PRODUCT = (
    "Add the factors in log space: instead of A * B write log(A) + log(B), or sign * (log1p(|A|) + "
    "log1p(|B|)) where they can be negative. Each factor then has its own gradient."
)
FIX = "Start away from it: break the symmetry of the initial values, or add a term with a slope there."


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """Saddles. Those of a product, and those next to an operating point, are warnings; the others are advice."""
    saddles = [each for each in surface.stationary if each.kind == PointKind.SADDLE]
    if saddles:
        yield _finding(surface, sorted(saddles, key=lambda each: not _is_near_a_mark(surface, each)))


def _finding(surface: Surface, saddles: list[Stationary]) -> Finding:
    first = saddles[0]
    is_product = surface.product is not None
    grave = is_product or _is_near_a_mark(surface, first)
    curved = f"{first.curvature[0]:.4g} and {first.curvature[-1]:.4g}"
    kind = " (a product of a factor in {} and one in {})".format(*surface.product) if surface.product else ""
    return rule.finding(
        f"{surface.name}{kind} has a saddle at {point(surface, first.at)} (loss {first.value:.4g}, "
        f"curvature {curved}).",
        cause=CAUSE_OF_PRODUCT if is_product else CAUSE,
        fix=FIX_OF_PRODUCT if surface.remedy is not None else FIX,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[
            Evidence("at", [point(surface, saddle.at) for saddle in saddles]),
            Evidence("curvature", curved),
            *_remedy(surface, first),
        ],
        severity=None if grave else Severity.ADVICE,
    )


def _is_near_a_mark(surface: Surface, saddle: Stationary) -> bool:
    """Within a twentieth of the plane of an operating point."""
    return any(
        all(abs(a - b) <= axis.span / 20 for a, b, axis in zip(mark, saddle.at, surface.axes, strict=True))
        for mark in surface.marks
    )


def _remedy(surface: Surface, saddle: Stationary) -> Iterator[Evidence]:
    """The gradient next to the saddle, now and in log space."""
    if surface.remedy is None:
        return
    cell = tuple(int(abs(axis.points - value).argmin()) for axis, value in zip(surface.axes, saddle.at, strict=True))
    ways = (("gradient next to it", surface), ("the same in log space", surface.remedy))
    for name, shown in ways:
        steepness = float(shown.steepness[cell])
        yield Evidence(name, float(f"{steepness:.3g}"))
    arrived = surface.remedy.arrivals
    if arrived:
        low = arrived.ended.get(End.MINIMUM, 0.0) + arrived.ended.get(End.LOWEST_EDGE, 0.0)
        yield Evidence("starts that reach the lowest value in log space", percent(low))
