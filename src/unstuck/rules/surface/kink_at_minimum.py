"""S08: the minimum is a kink, so the gradient does not shrink near it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity
from unstuck.findings.landmarks import PointKind
from unstuck.rule import Rule
from unstuck.rules.surface._words import point, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Stationary, Surface

rule = Rule(
    code="S08",
    name="kink-at-minimum",
    title="the loss has a kink at its minimum, around which a fixed step oscillates",
    severity=Severity.ADVICE,
)

CAUSE = (
    "The gradient keeps its size up to the minimum and then flips its sign: a constant learning rate jumps back "
    "and forth."
)
FIX = (
    "Use a smooth loss (smooth_l1_loss, huber_loss, log-cosh instead of an absolute value), or decay the learning rate."
)


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """A minimum across which the gradient jumps."""
    for minimum in surface.stationary:
        if minimum.kind == PointKind.MINIMUM and any(math.isinf(value) for value in minimum.curvature):
            yield _finding(surface, minimum)


def _finding(surface: Surface, minimum: Stationary) -> Finding:
    return rule.finding(
        f"{surface.name} has its minimum at a kink: {point(surface, minimum.at)} (loss {minimum.value:.4g}).",
        cause=CAUSE,
        fix=FIX,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[Evidence("at", point(surface, minimum.at))],
    )
