"""S07: the gradient from autograd is not the slope of the loss: a detached part, or a wrong custom backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Evidence, Finding, Severity
from unstuck.rule import Rule
from unstuck.rules.surface._words import point, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Disagreement, Surface

rule = Rule(
    code="S07",
    name="gradient-mismatch",
    title="the gradient from autograd is not the slope of the loss",
    severity=Severity.ERROR,
    explains=("S01", "S04"),
)

DETACHED = "No gradient gets through: detach(), .item(), no_grad or numpy removes the value from the graph."
CHANGED = "A part of the loss is detached, or a custom backward does not match its forward."
FIX = (
    "Find what leaves the graph (detach, .item(), .data, round or argmax), or correct the backward and test "
    "it with torch.autograd.gradcheck. Ignore this if it is on purpose: a stop-gradient or a straight-through "
    "estimator."
)
FEWEST = 3


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """At several sampled points, finite differences show another slope."""
    wrong = surface.disagreements
    if len(wrong) < FEWEST:
        return
    none = not surface.gradient.any()
    shown = max(wrong, key=_distance)
    yield rule.finding(
        f"At {point(surface, shown.at)} {surface.name} has the slope {_slope(shown.finite_difference)}, but "
        f"autograd computes {_slope(shown.autograd)}.",
        cause=DETACHED if none else CHANGED,
        fix=FIX,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[
            Evidence("points that disagree", len(wrong), threshold=float(FEWEST)),
            Evidence("autograd", _slope(shown.autograd)),
            Evidence("finite difference", _slope(shown.finite_difference)),
        ],
        severity=None if none else Severity.WARNING,
        confidence=Confidence.CERTAIN if none else Confidence.LIKELY,
    )


def _distance(wrong: Disagreement) -> float:
    pairs = zip(wrong.autograd, wrong.finite_difference, strict=True)
    return sum((one - other) ** 2 for one, other in pairs)


def _slope(slope: tuple[float, ...]) -> str:
    numbers = ", ".join(f"{value:.4g}" for value in slope)
    return numbers if len(slope) == 1 else f"({numbers})"
