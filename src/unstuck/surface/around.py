"""Axes around where training actually was: the ranges a run recorded of what it gave a loss of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unstuck.events import LossCall, TensorFact
from unstuck.surface.loss import SurfaceError

if TYPE_CHECKING:
    from unstuck.record import Record

ELEMENTWISE = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "poisson_nll_loss",
    "soft_margin_loss",
)
"""Losses of one input against one target, for which the recorded ranges are a plane."""
RECENT = 1 / 3
"""Of the calls whose values are on record: where training is, not where it began."""


def axes_around(record: Record, name: str) -> tuple[tuple[str, float, float], tuple[str, float, float]]:
    """The plane of input and target over which the latest calls of this loss ranged."""
    calls = [call for call in record.of(LossCall) if call.loss == name and call.output_requires_grad]
    if name not in ELEMENTWISE:
        raise SurfaceError(
            f"a record keeps the range of what {name} was given, which is a plane only for losses that compare "
            "number by number, such as mse_loss; give --x and --y instead."
        )
    if not calls:
        used = ", ".join(sorted({call.loss for call in record.of(LossCall)})) or "no loss of torch"
        raise SurfaceError(f"the run of {record.started.script} did not train on {name}; it used {used}.")
    inputs, targets = [call.input for call in calls], [call.target for call in calls]
    return ("input", *_range("input", inputs)), ("target", *_range("target", targets))


def _range(what: str, facts: Sequence[TensorFact | None]) -> tuple[float, float]:
    """Over the latest of the calls whose values were looked at, which are a sample of all."""
    known = [(fact.low, fact.high) for fact in facts if fact and fact.low is not None and fact.high is not None]
    if not known:
        raise SurfaceError(f"the run has no range of the {what} on record; give --x and --y instead.")
    recent = known[-max(1, round(RECENT * len(known))) :]
    low, high = min(low for low, _ in recent), max(high for _, high in recent)
    return (low, high) if low < high else (low - 1, high + 1)
