"""S05: a region of the plane where the loss or its gradient is NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.rule import Rule
from unstuck.rules.surface._words import box, percent, plane, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Culprit, Region, Surface

rule = Rule(
    code="S05",
    name="non-finite-region",
    title="the loss or its gradient is NaN or infinite for some inputs",
    severity=Severity.ERROR,
)

CAUSE = "One such value in a batch makes every gradient of the step non-finite, and one such step ruins the weights."
FIX = "Guard the operation that produces it: keep its input away from the values it cannot take (clamp, + 1e-6, log1p)."
RAISES = "raises"


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """Everything that is not finite, starting with the largest region and the operation that produces it."""
    regions = [region for region in surface.non_finite if not region.culprit or region.culprit.operation != RAISES]
    if regions:
        yield _finding(surface, sorted(regions, key=lambda region: -region.share))


def _finding(surface: Surface, regions: list[Region]) -> Finding:
    share = sum(region.share for region in regions)
    culprit = next((region.culprit for region in regions if region.culprit), None)
    what = "" if any(region.label == "loss" for region in regions) else "The gradient of "
    by = f", because of {culprit.shown}" if culprit else ""
    where = f"on {percent(share)} of the {plane(surface)}: " if share else "at a point: "
    return rule.finding(
        f"{what}{surface.name} is not finite {where}{box(surface, regions[0])}{by}.",
        cause=CAUSE,
        fix=_fix(culprit),
        subject=subject_of(surface),
        place=surface.place,
        related=[region.culprit.place for region in regions if region.culprit],
        evidence=_evidence(surface, regions, share),
    )


def _fix(culprit: Culprit | None) -> str:
    if culprit is None or not culprit.guard:
        return FIX
    return f"{culprit.guard[0].upper()}{culprit.guard[1:]}."


def _evidence(surface: Surface, regions: list[Region], share: float) -> Iterator[Evidence]:
    yield Evidence("share not finite", float(f"{100 * share:.3g}"), "%")
    yield Evidence("where", [box(surface, region) for region in regions])
    operations = {region.culprit.operation: region.culprit for region in regions if region.culprit}
    for culprit in operations.values():
        yield Evidence("made by", culprit.shown, place=culprit.place)
        if culprit.left is not None:
            yield Evidence("share left with the guards in place", float(f"{100 * culprit.left:.3g}"), "%")
