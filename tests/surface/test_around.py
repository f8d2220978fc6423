"""Axes around what a run recorded."""

from __future__ import annotations

import pytest
from fakes import make_record

from unstuck.events import LossCall, TensorFact
from unstuck.surface.around import axes_around
from unstuck.surface.loss import SurfaceError


def call(low: float | None, high: float | None, loss: str = "mse_loss", trains: bool = True) -> LossCall:
    fact = TensorFact(low=low, high=high)
    return LossCall(loss=loss, input=fact, target=TensorFact(low=0.0, high=0.0), output_requires_grad=trains)


def test_the_latest_third_of_the_calls_counts() -> None:
    record = make_record(call(-90, 90), call(-50, 50), call(-1, 2), call(-9, 9, trains=False))
    assert axes_around(record, "mse_loss") == (("input", -1, 2), ("target", -1, 1))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cross_entropy", "a plane only for losses that compare number by number"),
        ("huber_loss", "the run of train.py did not train on huber_loss; it used l1_loss, mse_loss"),
        ("l1_loss", "the run has no range of the input on record"),
    ],
)
def test_what_a_record_does_not_hold_is_not_made_up(name: str, sentence: str) -> None:
    record = make_record(call(-1, 2), call(None, None, "l1_loss"))
    with pytest.raises(SurfaceError, match=sentence):
        axes_around(record, name)
