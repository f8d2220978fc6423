"""Axes around what a run recorded."""

from __future__ import annotations

import math

import pytest
import torch
from fakes import make_record

from unstuck.events import InputFact, LossCall, LossInputs, TensorFact
from unstuck.surface.loss import SurfaceError
from unstuck.surface.weights.around import around, margin_loss


def call(low: float | None, high: float | None, loss: str = "mse_loss", trains: bool = True) -> LossCall:
    fact = TensorFact(low=low, high=high)
    return LossCall(loss=loss, input=fact, target=TensorFact(low=0.0, high=0.0), output_requires_grad=trains)


def inputs(name: str, *middles: float, trains: bool = True) -> list[LossInputs]:
    """Calls of `pair(pos, t)`, whose `pos` lay around these values."""
    quantiles = [(m - 0.2, m - 0.1, m, m + 0.1, m + 0.2) for m in middles]
    facts = [InputFact("pos", (8,), "float32", q[0] - 5, q[-1] + 0.05, q, trains) for q in quantiles]
    return [LossInputs(loss=name, inputs=(fact, InputFact("t", value=0.5))) for fact in facts]


def test_the_latest_third_of_the_calls_counts() -> None:
    record = make_record(call(-90, 90), call(-50, 50), call(-1, 2), call(-9, 9, trains=False))
    assert around(record, "mse_loss", None).axes == (("input", -1, 2), ("target", -1, 1))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nll_loss", "a plane only for losses that compare number by number"),
        ("huber_loss", r"the run of train.py did not train on huber_loss \(it used l1_loss, mse_loss, nll_loss\)\.$"),
        ("my_loss", "to record a loss of your own: unstuck run --loss MODULE:my_loss train.py"),
        ("l1_loss", "the run has no range of the input on record"),
    ],
)
def test_what_a_record_does_not_hold_is_not_made_up(name: str, sentence: str) -> None:
    record = make_record(call(-1, 2), call(None, None, "l1_loss"), call(-3, 0, "nll_loss"))
    with pytest.raises(SurfaceError, match=sentence):
        around(record, name, None)


def test_a_loss_of_ones_own_is_shown_where_it_was_early_and_late() -> None:
    seen = around(make_record(*inputs("pair", 0.0, 0.5, 0.9, 1.0)), "pair", None)
    assert seen.at == {"early in the run": (0.0,), "late in the run": (1.0,)}
    assert seen.fixed == {"t": 0.5}
    ((name, low, high),) = seen.axes
    # From 0.2 below the first to 0.2 above the last, half as far again below, and above as far as there was something.
    assert name == "pos"
    assert (low, high) == pytest.approx((-0.9, 1.25))


def test_what_the_user_fixes_is_not_fixed_by_the_run() -> None:
    seen = around(make_record(*inputs("pair", 0.0)), "pair", None, fixed={"t": 2.0})
    assert seen.fixed == {"t": 2.0}
    assert seen.at == {"in the run": (0.0,)}


@pytest.mark.parametrize(
    ("facts", "wanted", "sentence"),
    [
        (
            (InputFact("batch", kind="dict"),),
            (),
            r"no numbers that train on record for pair; it was given batch \(dict\)",
        ),
        ((InputFact("pos", (3,), "float32"),), ("pos",), "no values of pos on record for pair"),
        (
            (*inputs("pair", 1.0)[0].inputs, InputFact("graph", kind="Graph")),
            (),
            "pair was given Graph as 'graph', which a record does not keep; fix it with --fix",
        ),
    ],
)
def test_inputs_without_numbers_are_said(facts: tuple[InputFact, ...], wanted: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(SurfaceError, match=sentence):
        around(make_record(LossInputs(loss="pair", inputs=facts)), "pair", None, wanted=wanted)


@pytest.mark.parametrize("value", [1e-4, 0.3, math.log(5), 7.0, 60.0])
def test_the_margin_of_cross_entropy_gives_the_recorded_loss(value: float) -> None:
    seen = TensorFact(shape=(16, 5), low=-2.0, high=3.0)
    record = make_record(
        LossCall(loss="cross_entropy", input=seen, target=TensorFact(), output_requires_grad=True, value=value)
    )
    found = around(record, "cross_entropy", None)
    (margin,) = found.at["in the run"]
    assert float(margin_loss(5)(torch.tensor(margin, dtype=torch.float64))) == pytest.approx(value, rel=1e-6)
    ((name, low, high),) = found.axes
    assert name == "margin"
    assert low <= -5.0 < 5.0 <= high
    assert low < margin < high


def test_cross_entropy_without_scores_is_said() -> None:
    record = make_record(call(None, None, "cross_entropy"))
    with pytest.raises(SurfaceError, match="neither scores nor losses of cross_entropy on record"):
        around(record, "cross_entropy", None)
