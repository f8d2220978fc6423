"""What a training achieved, from its losses and what a guess would cost."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import make_record
from unstuck.events import Backward, Evaluated, Forward, Gauges, OptimizerStep, Place, Scored
from unstuck.record import Record
from unstuck.record.outcome import Achieved, Outcome, losses_of, outcome_of

Course = Callable[[float], float]


def training(course: Course, steps: int = 600, noise: float = 0.02, *more: Any, **score: Any) -> Record:
    """A run whose loss is one call, whose answers are scored at every tenth step."""
    chance = random.Random(0)
    losses = tuple(course(step / steps) + chance.gauss(0, noise) for step in range(steps))
    scores = []
    for step in range(0, steps, 10):
        fields = {name: value(step / steps) if callable(value) else value for name, value in score.items()}
        fields = {"loss": "cross_entropy", "labels": 32, "cost": losses[step], **fields}
        scores.append(Scored(step=step + 1, **fields))
    return make_record(*scores, *more, losses=losses)


def achieved(record: Record) -> Outcome:
    found = outcome_of(record)
    assert found is not None
    return found


def test_a_run_that_learns_says_what_it_is_measured_against() -> None:
    record = training(
        lambda t: 0.3 + 2 * math.exp(-8 * t), guess=2.3, guess_right=0.1, right=lambda t: min(0.91, 0.1 + 2 * t)
    )
    found = achieved(record)
    assert found.word is Achieved.LEARNS
    assert (found.guess, found.right_guess) == (pytest.approx(2.3), 0.1)
    assert found.right == pytest.approx(0.91, abs=0.01)
    assert found.first == pytest.approx(2.3, abs=0.1)
    assert found.last == pytest.approx(0.3, abs=0.02)
    assert found.beats_guess_by == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize(
    ("course", "guess"),
    [
        (lambda t: 2.22 + 0.8 * math.exp(-10 * t), 1.79),
        (lambda t: 2.3 + 168 * math.exp(-40 * t), 0.69),
        (lambda t: 2.305, 2.303),
        (lambda t: 2.31 - 0.007 * t, 2.30),
        (lambda t: 90_000 - 10_000 * t, 1000.0),
    ],
)
def test_a_loss_that_ends_where_a_guess_would_be_or_above_does_not_beat_it(course: Course, guess: float) -> None:
    record = training(course, guess=guess)
    assert achieved(record).word is Achieved.GUESSES


def test_what_is_on_its_way_below_a_guess_learns_slowly() -> None:
    assert achieved(training(lambda t: 10.8 - 2.2 * t, guess=8.2)).word is Achieved.SLOWLY


def test_a_crawl_that_has_just_passed_a_guess_learns_slowly() -> None:
    assert achieved(training(lambda t: 2.3 - 0.15 * t, guess=2.28, noise=0.005)).word is Achieved.SLOWLY


def test_a_young_run_is_unclear() -> None:
    assert achieved(training(lambda t: 2.3, steps=40, guess=2.3)).word is Achieved.UNCLEAR


def test_noise_too_large_for_its_length_is_unclear() -> None:
    assert achieved(training(lambda t: 2.3, steps=60, noise=2.0, guess=2.3)).word is Achieved.UNCLEAR


def test_a_scaled_loss_is_compared_with_a_scaled_guess() -> None:
    record = training(lambda t: 32 * (0.3 + 2 * math.exp(-8 * t)), noise=0.0, guess=2.3, cost=None)
    scores = [
        Scored(step=step, loss="cross_entropy", labels=32, cost=loss / 32, guess=2.3)
        for step, loss in record.losses[::10]
    ]
    found = achieved(make_record(*scores, losses=tuple(loss for _, loss in record.losses)))
    assert (found.word, found.term) == (Achieved.LEARNS, "")
    assert found.guess == pytest.approx(73.6)


def test_a_sum_of_terms_is_judged_by_the_term_that_can_be() -> None:
    record = training(lambda t: 5 - 3 * t, guess=2.3, cost=lambda t: 2.3)
    found = achieved(record)
    assert (found.word, found.term, found.guess) == (Achieved.GUESSES, "cross_entropy", None)
    assert found.cost_guess == pytest.approx(2.3)


def test_shares_right_decide_where_no_cost_can_be_compared() -> None:
    flat = training(lambda t: -0.2, guess_right=0.25, right=0.25, labels=64)
    right = training(lambda t: -0.2 - 0.7 * t, guess_right=0.25, right=lambda t: min(1, 0.25 + t), labels=64)
    assert achieved(flat).word is Achieved.GUESSES
    assert achieved(right).word is Achieved.LEARNS


def test_a_loss_that_is_computed_only_early_does_not_count() -> None:
    first_try = [
        Scored(step=step, loss="mse_loss", labels=32, cost=1 / step, guess=1.0, place=Place("train.py", 9))
        for step in range(1, 40)
    ]
    record = training(lambda t: 1.386, 600, 0.01, *first_try, guess=1.385)
    assert achieved(record).word is Achieved.GUESSES


def test_memorizing() -> None:
    seen = {"guess": 2.3, "guess_right": 0.1, "right": lambda t: min(1.0, 0.1 + 3 * t)}
    evaluated = Evaluated(step=600, loss="cross_entropy", value=4.0, accuracy=0.11, examples=500, classes=10)
    good = Evaluated(step=600, loss="cross_entropy", value=0.5, accuracy=0.85, examples=500, classes=10)

    def course(t: float) -> float:
        return 2.3 * math.exp(-6 * t)

    assert achieved(training(course, 600, 0.005, evaluated, **seen)).word is Achieved.MEMORIZES
    found = achieved(training(course, 600, 0.005, good, **seen))
    assert (found.word, found.evaluated_right, found.evaluated) == (Achieved.LEARNS, 0.85, 0.5)


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ([2.3 * 1.1**step for step in range(60)], Achieved.DIVERGES),
        ([2.3 - 0.002 * step for step in range(600)], Achieved.LEARNS),
        ([2.3 + 0.0001 * (step % 2) for step in range(600)], Achieved.STAYS),
        ([2.3, 2.2, 2.1], Achieved.UNCLEAR),
    ],
)
def test_without_a_guess_the_course_of_the_loss_decides(losses: list[float], word: Achieved) -> None:
    assert achieved(make_record(losses=tuple(losses))).word is word


def test_a_moving_goal_is_unclear() -> None:
    steps = [event for step in range(60) for event in (Forward(step=step, grad_enabled=False),)]
    found = outcome_of(make_record(*steps, losses=tuple(1.0 + 0.01 * (step % 3) for step in range(600))), moving=True)
    assert found is not None
    assert found.word is Achieved.UNCLEAR


def test_losses_of_competing_optimizers_have_no_word() -> None:
    steps = [OptimizerStep(step=step, optimizer=("generator", "critic")[step % 2]) for step in range(60)]
    assert outcome_of(make_record(*steps, losses=(0.7,) * 60)) is None


def test_a_record_without_losses_has_no_outcome() -> None:
    assert outcome_of(make_record()) is None


def players_of(critic: Course, generator: Course, steps: int = 200) -> Record:
    chance = random.Random(0)
    gauges = [
        Gauges(step=2 * step + at, optimizer=name, loss=course(step / steps) + chance.gauss(0, 0.005))
        for step in range(steps)
        for at, (name, course) in enumerate((("critic", critic), ("generator", generator)))
    ]
    events = [
        event
        for gauge in gauges
        for event in (Backward(step=gauge.step), OptimizerStep(step=gauge.step, optimizer=gauge.optimizer), gauge)
    ]
    return make_record(*events)


def test_players_of_whom_nobody_moves_do_not_learn() -> None:
    found = achieved(players_of(lambda t: 1.386, lambda t: 0.693))
    assert found.word is Achieved.STAYS
    assert found.first == pytest.approx(1.386, abs=0.02)


def test_players_of_whom_one_moves_may_learn() -> None:
    assert outcome_of(players_of(lambda t: 1.386, lambda t: 0.7 + 0.2 * math.sin(9 * t))) is None
    assert outcome_of(players_of(lambda t: 1.386 - 0.3 * math.exp(-20 * (t - 0.3) ** 2), lambda t: 0.7)) is None


def test_a_level_loss_a_little_below_a_guess_barely_beats_it() -> None:
    found = achieved(training(lambda t: 0.652, guess=0.684, guess_right=0.56, right=0.59, noise=0.01))
    assert found.word is Achieved.BARELY
    assert not found.word.is_trouble


def test_a_loss_without_noise_that_ends_at_a_guess_does_not_beat_it() -> None:
    assert achieved(training(lambda t: 1.38 - 0.001 * t, guess=1.386, noise=0.0)).word is Achieved.GUESSES


def test_a_curriculum_whose_loss_rises_does_not_diverge() -> None:
    def harder(t: float) -> float:
        stage = int(t * 4)
        return (1 + stage) * (1 - 0.5 * (t * 4 - stage))

    assert achieved(make_record(losses=tuple(harder(step / 800) for step in range(800)))).word is not Achieved.DIVERGES
    far_below = training(lambda t: 0.001 + 0.008 * t, guess=0.15, loss="mse_loss", noise=0.0002)
    assert achieved(far_below).word is Achieved.LEARNS
    assert achieved(make_record(losses=tuple(1 + step / 100 for step in range(800)))).word is Achieved.DIVERGES


def test_a_first_try_that_is_over_does_not_speak_for_what_follows() -> None:
    tried = [Scored(step=step, loss="cross_entropy", labels=32, cost=1.4 - step / 50, guess=1.39) for step in range(60)]
    place = Place("train.py", 20)
    after = [
        Scored(step=step, loss="cross_entropy", labels=32, cost=1.39, guess=1.39, place=place) for step in range(60, 66)
    ]
    losses = tuple(1.4 - step / 50 if step < 60 else 1.39 for step in range(660))
    assert achieved(make_record(*tried, *after, losses=losses)).word is Achieved.GUESSES


def test_losses_without_a_step_between_them_are_no_course() -> None:
    record = make_record(*(Gauges(step=0, loss=loss) for loss in (38.7, 0.6, 0.6, 0.6)))
    assert losses_of(record) == []
    assert outcome_of(record) is None


@pytest.mark.parametrize("size", [1e160, 1e308])
def test_a_loss_in_double_precision_that_explodes_has_an_outcome(size: float) -> None:
    """Squares and sums of what is left are too large for a number."""
    record = training(lambda t: 2.3 if t < 0.9 else size, guess=2.3, guess_right=0.1, right=0.1)
    assert achieved(record).word is not Achieved.LEARNS
    assert outcome_of(training(lambda t: size * (0.5 + 0.5 * t), guess=2.3, guess_right=0.1, right=0.1)) is not None
