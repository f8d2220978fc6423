"""S09: a contrastive loss that stays close to the cost of a guess, however well the embeddings are separated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Evidence, Finding, Severity
from unstuck.rule import Rule
from unstuck.rules.surface._words import percent, subject_of

if TYPE_CHECKING:
    from unstuck.findings.surface import Axis, Comparison, Surface

rule = Rule(
    code="S09",
    name="cannot-beat-a-guess",
    title="a contrastive loss that even the best embeddings hardly bring below the cost of a guess",
    severity=Severity.ERROR,
)

CAUSE = (
    "Similarities lie between -1 and 1. Multiplied by so small a number, the softmax is nearly uniform whatever the "
    "embeddings are: the loss stays at log({count}), and the gradients are too small to separate anything."
)
CAUSE_IF = "This holds if the inputs are cosine similarities, which cannot leave -1 to 1. "
FIX = "Divide the similarities by the temperature instead of multiplying them by it: similarity / {scale:.3g}."
FIX_OF_SCALE = "Lower the temperature: similarities are divided by 0.05 to 0.5 in published losses."
TWICE = math.log(2)
"""A loss this far below another gives the right candidate twice the probability."""


@rule.in_surface
def in_surface(surface: Surface) -> Iterator[Finding]:
    """The best that similarities can do does not give the right candidate twice the probability of a guess, nor half
    of what there is to gain."""
    compared = surface.comparison
    if compared is None or compared.scale <= 0:
        return
    if not compared.is_bounded and not all(map(_holds_similarities, surface.axes)):
        return
    if compared.guess - surface.lowest < min(TWICE, compared.guess / 2):
        yield _finding(surface, compared)


def _holds_similarities(axis: Axis) -> bool:
    """Does it reach as far as a cosine similarity does, and no further?"""
    return axis.high == 1 and axis.low in (-1, 0)


def _finding(surface: Surface, compared: Comparison) -> Finding:
    scale, count = compared.scale, compared.candidates
    cause = CAUSE.format(count=count)
    return rule.finding(
        f"{surface.name} multiplies similarities by {scale:.3g}: at the best separation it costs {surface.lowest:.3g}, "
        f"where a guess among {count} costs {compared.guess:.3g}.",
        cause=cause if compared.is_bounded else CAUSE_IF + cause,
        fix=FIX.format(scale=scale) if scale < 1 else FIX_OF_SCALE,
        subject=subject_of(surface),
        place=surface.place,
        evidence=[
            Evidence("probability of the right candidate, at best", percent(math.exp(-surface.lowest))),
            Evidence("a guess", percent(1 / count)),
            Evidence("similarities are multiplied by", float(f"{scale:.3g}")),
        ],
        severity=None if compared.is_bounded else Severity.WARNING,
        confidence=Confidence.CERTAIN if compared.is_bounded else Confidence.LIKELY,
    )
