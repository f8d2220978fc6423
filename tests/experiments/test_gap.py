"""`gap`: whether what is learned carries over to new training examples and to the evaluation. Its page has the runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from unstuck.capture.trial.held_out import FEWEST, RUNS, SHARE, substitutes
from unstuck.experiments.gap import Level, evaluated_level, judge
from unstuck.findings.results import ExperimentVerdict
from unstuck.record.outcome import Achieved, Outcome


@given(st.integers(FEWEST, 5_000))
def test_a_fifth_is_kept_out_and_nothing_else_is_met_at_the_end(size: int) -> None:
    known, new = substitutes(size, unseen=False), substitutes(size, unseen=True)
    met, asked = set(known.tolist()), set(new.tolist())
    assert not met & asked
    assert met | asked == set(range(size))
    assert len(asked) <= SHARE * size
    assert len(asked) >= SHARE * size - RUNS
    numbers = torch.arange(size)
    assert torch.equal(known[sorted(met)], numbers[sorted(met)])  # what is not kept out stays as it is
    assert torch.equal(new[sorted(asked)], numbers[sorted(asked)])


def level(gained: float) -> Level:
    return Level(gained, f"{gained:.0%} right")


@pytest.mark.parametrize(
    ("seen", "unseen", "evaluated", "verdict"),
    [
        (0.97, 0.95, 0.2, ExperimentVerdict.APART),
        (0.97, 0.1, 0.1, ExperimentVerdict.MEMORIZED),
        (0.97, 0.6, 0.2, ExperimentVerdict.UNDECIDED),
        (0.97, 0.9, 0.46, ExperimentVerdict.UNDECIDED),
        (0.2, 0.2, 0.0, ExperimentVerdict.UNDECIDED),
    ],
)
def test_the_part_that_fails_is_named(seen: float, unseen: float, evaluated: float, verdict: ExperimentVerdict) -> None:
    assert judge(level(seen), level(unseen), level(evaluated))[0] is verdict


def test_an_evaluation_that_only_has_a_loss_is_compared_with_a_guess() -> None:
    found = evaluated_level(Outcome(word=Achieved.LEARNS, guess=2.0, evaluated=1.5))
    assert found is not None
    assert found.gained == pytest.approx(0.25)
    assert evaluated_level(Outcome(word=Achieved.LEARNS, evaluated=1.5)) is None
