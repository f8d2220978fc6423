"""Where the returns of an agent went, measured against their own noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.fakes import make_record
from unstuck.events import EpisodesEnded, Forward, Place, RunEnded, RunStatus, StateLoaded
from unstuck.record import Record
from unstuck.record.outcome import Achieved, outcome_of
from unstuck.record.returns import Course, course_of

LOSSES = tuple(random.Random(1).gauss(0, 1) for _ in range(300))


def played(course: Callable[[float], float], noise: float, episodes: int, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [course(n / episodes) + chance.gauss(0, noise) for n in range(episodes)]


def run(returns: list[float], *more: object, line: int = 9, contested: bool = False, **other: object) -> Record:
    steps = tuple(int(300 * n / len(returns)) for n in range(len(returns)))
    event = EpisodesEnded(
        step=steps[-1],
        place=Place("train.py", line),
        environment="Pole",
        steps=steps,
        returns=tuple(returns),
        contested=contested,
    )
    return make_record(event, *more, losses=LOSSES, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "course"),
    [
        (played(lambda t: 21 + 166 * t, 20, 240), Course.RISES),
        (played(lambda t: 20 if t < 0.01 else 200, 5, 5000), Course.RISES),
        (played(lambda t: -0.6, 0, 60), Course.STAYS),
        (played(lambda t: 0, 1, 600), Course.STAYS),
        (played(lambda t: 2.5 - 5 * t, 3, 400), Course.FALLS),
        (played(lambda t: 20 + (130 if 0.3 < t < 0.6 else 0), 5, 600), Course.STAYS),
        (played(lambda t: 0.5 * t, 1, 2000), Course.CREEPS),
        (played(lambda t: 0, 1, 40), Course.UNCLEAR),
        (played(lambda t: 0, 1, 10), Course.UNCLEAR),
    ],
)
def test_the_end_is_compared_with_the_beginning(values: list[float], course: Course) -> None:
    assert course_of(values) is course


def test_noise_is_hardly_ever_called_a_direction() -> None:
    chance = random.Random(0)
    heavy = [[chance.paretovariate(1.1) for _ in range(20 + size % 300)] for size in range(3000)]
    sparse = [[float(chance.random() < share) for _ in range(400)] for share in (0.02, 0.1, 0.9, 0.98) * 250]
    courses = [course_of(values) for values in (*heavy, *sparse)]
    # Four standard errors, for several beginnings of each.
    assert courses.count(Course.FALLS) + courses.count(Course.RISES) <= 4


def test_a_rising_return_is_learning_whatever_the_loss_does() -> None:
    found = outcome_of(run(played(lambda t: 21 + 166 * t, 20, 240)))
    assert found is not None
    assert found.returns is not None
    assert found.word is Achieved.LEARNS
    assert (found.returns.environment, found.returns.episodes) == ("Pole", 240)
    assert 15 < found.returns.first < 45 < 160 < found.returns.last < 200


def test_a_return_that_stays_is_trouble() -> None:
    found = outcome_of(run([-0.6] * 220))
    assert found is not None
    assert found.word is Achieved.STAYS
    assert found.word.is_trouble


STOPPED = RunEnded(steps=300, status=RunStatus.STOPPED)
TRAINED = StateLoaded(model="Net", matched=4, tensors=4), Forward(model="Net", grad_enabled=True)


@pytest.mark.parametrize(
    "record",
    [
        run([-0.6] * 220, contested=True),
        run([-0.6] * 100, STOPPED, ended=False),
        run([-0.6] * 220, *TRAINED),
    ],
    ids=["a game", "cut short", "already trained"],
)
def test_a_return_that_may_well_stay_is_not(record: Record) -> None:
    found = outcome_of(record)
    assert found is not None
    assert found.word is Achieved.UNCLEAR


def test_weights_given_to_a_target_network_do_not_excuse_it() -> None:
    found = outcome_of(run([-0.6] * 220, StateLoaded(model="Copy", matched=4, tensors=4), TRAINED[1]))
    assert found is not None
    assert found.word is Achieved.STAYS


def test_an_evaluation_of_its_own_line_or_after_the_last_step_is_left_out() -> None:
    elsewhere = EpisodesEnded(place=Place("train.py", 50), environment="Pole", steps=(10,) * 40, returns=(500.0,) * 40)
    later = EpisodesEnded(
        step=301, place=Place("train.py", 9), environment="Pole", steps=(301,) * 80, returns=(500.0,) * 80
    )
    found = outcome_of(run([-0.6] * 220, elsewhere, later))
    assert found is not None
    assert found.word is Achieved.STAYS


def test_values_that_stand_for_several_episodes_are_weighed_alike() -> None:
    noisy = played(lambda t: 0, 1, 800)
    halves = tuple((one + other) / 2 for one, other in zip(noisy[400::2], noisy[401::2], strict=True))
    late = EpisodesEnded(place=Place("train.py", 9), environment="Pole", steps=(299,) * 200, returns=halves, each=2)
    found = outcome_of(run(noisy[:400], late))
    assert found is not None
    assert found.returns is not None
    assert found.returns.episodes == 800
    assert found.returns.course in (Course.STAYS, Course.UNCLEAR)
