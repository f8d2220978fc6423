"""S02: the gradient along one axis is a thousand times larger than along the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.rule import Rule
from unstuck.rules.surface._words import percent, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Surface

rule = Rule(
    code="S02",
    name="axis-imbalance",
    title="gradients a thousand times larger along one input than along the other",
    severity=Severity.WARNING,
)

TOO_MUCH = 1000.0
ENOUGH = 0.5
CAUSE = (
    "No learning rate suits both: a step small enough for {steep} does not move {flat}, and clipping by norm "
    "keeps only {steep}."
)
FIX = (
    "Rescale {steep} (divide by its typical size, or learn its logarithm), or weight the two terms so that their "
    "gradients match."
)


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """The same axis dominates by a factor of 1000 over most of the plane where both have a gradient."""
    if surface.dimensions != 2:
        return
    first, second = abs(surface.gradient)
    both = surface.finite & (first > 0) & (second > 0)
    if not both.any():
        return
    ratios = first[both] / second[both]
    for steep, flat, ratio in ((0, 1, ratios), (1, 0, 1 / ratios)):
        dominated = float((ratio >= TOO_MUCH).mean())
        if dominated >= ENOUGH:
            middle = float(sorted(ratio)[len(ratio) // 2])
            yield _finding(surface, surface.axes[steep].name, surface.axes[flat].name, middle, dominated)


def _finding(surface: Surface, steep: str, flat: str, ratio: float, share: float) -> Finding:
    return rule.finding(
        f"The gradient of {surface.name} along {steep} is {ratio:,.0f} times that along {flat} "
        f"(median), and at least {TOO_MUCH:,.0f} times over {percent(share)} of the plane.",
        cause=CAUSE.format(steep=steep, flat=flat),
        fix=FIX.format(steep=steep, flat=flat),
        subject=subject_of(surface),
        place=surface.place,
        evidence=[Evidence(f"gradient along {steep} : along {flat}", float(f"{ratio:.4g}"), "times", TOO_MUCH)],
    )
