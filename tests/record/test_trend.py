from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from unstuck.record.trend import FEWEST, trend_of

WORDS = {"falling", "crawling", "flat", "rising", "spiking", "too short", "non-finite"}
finite = st.floats(allow_nan=False, allow_infinity=False)


def noisy(level: object, steps: int, noise: float, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [(level(step / steps) if callable(level) else level) + chance.gauss(0, noise) for step in range(steps)]


@given(st.lists(st.floats()))
def test_every_series_gets_a_word_and_its_length(losses: list[float]) -> None:
    trend = trend_of(losses)
    assert trend.word in WORDS
    assert trend.steps == len(losses)


@given(st.lists(finite, min_size=FEWEST), st.sampled_from([2.0**-20, 0.5, 4.0, 2.0**20]))
def test_the_unit_of_the_loss_does_not_matter(losses: list[float], factor: float) -> None:
    scaled = [value * factor for value in losses]
    if all(math.isfinite(value) and value / factor == before for value, before in zip(scaled, losses, strict=True)):
        assert trend_of(scaled).word == trend_of(losses).word


@given(finite, st.integers(FEWEST, 500))
def test_a_constant_is_flat(value: float, steps: int) -> None:
    assert trend_of([value] * steps).word == "flat"


@given(st.lists(finite, max_size=FEWEST - 1))
def test_a_few_values_are_too_short(losses: list[float]) -> None:
    assert trend_of(losses).word == "too short"


@given(st.lists(finite), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_loss_that_ends_non_finite_says_so(losses: list[float], last: float) -> None:
    assert trend_of([*losses, last]).word == "non-finite"


@pytest.mark.parametrize("steps", [30, 100, 1000])
@pytest.mark.parametrize("noise", [0.001, 0.02])
def test_noise_around_a_level_is_flat(steps: int, noise: float) -> None:
    words = [trend_of(noisy(2.3, steps, 2.3 * noise, seed)).word for seed in range(200)]
    assert words.count("falling") + words.count("rising") <= 2
    assert words.count("flat") >= 180


def test_heavy_noise_is_never_called_a_direction_and_is_flat_once_there_is_enough_of_it() -> None:
    few = [trend_of(noisy(1.0, 60, 0.3, seed)).word for seed in range(100)]
    many = [trend_of(noisy(1.0, 10_000, 0.3, seed)).word for seed in range(10)]
    assert few.count("too short") >= 95
    assert many == ["flat"] * 10


@pytest.mark.parametrize("steps", [30, 100, 1000, 10_000])
@pytest.mark.parametrize(
    ("shape", "word"),
    [
        (lambda t: 2.3 - t, "falling"),
        (lambda t: 2.3 * math.exp(-20 * t), "falling"),
        (lambda t: 2.3 / (1 + 10 * t), "falling"),
        (lambda t: -5 - 3 * t, "falling"),
        (lambda t: 0.5 + t, "rising"),
        (lambda t: 0.1 * math.exp(5 * t), "rising"),
    ],
)
def test_a_direction_is_seen_through_noise(shape: object, word: str, steps: int) -> None:
    assert all(trend_of(noisy(shape, steps, 0.02, seed)).word == word for seed in range(5))


def test_a_loss_that_fell_at_once_and_stayed_low_has_fallen() -> None:
    losses = noisy(lambda t: 0.1 + 2.2 * math.exp(-300 * t), 10_000, 0.01)
    assert trend_of(losses).word == "falling"


@pytest.mark.parametrize(("step", "word"), [(0.07, "rising"), (0.04, "too short")])
def test_a_direction_exceeds_its_error_four_times(step: float, word: str) -> None:
    losses = [1 + (step if index >= 60 else 0) + (0.02 if index % 2 else -0.02) for index in range(120)]
    trend = trend_of(losses)
    assert trend.word == word
    assert trend.change is not None
    assert trend.error is not None
    assert (4 < trend.change / trend.error < 8) == (word == "rising")


def test_a_certain_but_tiny_drift_is_flat() -> None:
    assert trend_of(noisy(lambda t: 2.303 - 0.004 * t, 1000, 1e-4)).word == "flat"


def test_spikes_are_upward_and_come_back() -> None:
    losses = noisy(0.5, 400, 0.01)
    up, down = list(losses), list(losses)
    for index in (100, 200, 300):
        up[index], down[index] = 5.0, -5.0
    assert trend_of(up).word == "spiking"
    assert trend_of(down).word == "flat"


def test_one_spike_is_an_accident() -> None:
    losses = noisy(lambda t: 2.3 - 2 * t, 400, 0.01)
    losses[200] = 50.0
    assert trend_of(losses).word == "falling"


def test_small_jumps_of_a_loss_near_zero_are_no_spikes() -> None:
    losses = noisy(lambda t: 2.3 * math.exp(-30 * t), 1000, 1e-5)
    for index in (600, 700, 800):
        losses[index] = 0.01
    assert trend_of(losses).word == "falling"


def test_the_last_is_a_median_so_that_one_wild_value_does_not_speak_for_the_run() -> None:
    trend = trend_of([*[2.0] * 99, 100.0])
    assert (trend.first, trend.last, trend.word) == (2.0, 2.0, "flat")


@pytest.mark.parametrize("steps", [100, 3000])
@pytest.mark.parametrize("fall", [0.05, 0.3, 0.9])
def test_a_loss_that_falls_from_an_absurd_start_within_a_few_steps_began_there(steps: int, fall: float) -> None:
    chance = random.Random(1)
    losses = [31_668.0 * fall**step + 0.26 - 0.05 * step / steps + chance.gauss(0, 0.01) for step in range(steps)]
    trend = trend_of(losses)
    assert trend.first == pytest.approx(31_668, rel=0.01)
    assert trend.word == "falling"
    assert trend.runs_to_go is None


def test_the_first_value_of_a_loss_of_single_examples_may_be_an_accident() -> None:
    chance = random.Random(3)
    losses = [0.003, *(chance.lognormvariate(0, 1) for _ in range(400))]
    first = trend_of(losses).first
    assert first is not None
    assert first > 0.1


def test_a_rising_loss_begins_where_it_begins() -> None:
    assert trend_of([2.3 * 1.5**step for step in range(40)]).first == 2.3


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_single_examples_that_falls_by_99_percent_falls(seed: int) -> None:
    chance = random.Random(seed)
    losses = [2.3 * math.exp(-4.6 * min(1, step / 1500)) * chance.lognormvariate(-2, 2) for step in range(3000)]
    assert trend_of(losses).word == "falling"


def test_a_straight_fall_of_some_percent_crawls_whatever_its_round_number() -> None:
    for share in (0.08, 0.106, 0.15):
        for seed in range(10):
            trend = trend_of(noisy(lambda t, share=share: 2.3 * (1 - share * t), 400, 0.005, seed))
            assert (share, trend.word) == (share, "crawling")


def test_a_fall_of_some_percent_that_levels_off_or_has_just_begun_does_not_crawl() -> None:
    for shape in (lambda t: 2.3 * (1 - 0.15 * (1 - math.exp(-5 * t))), lambda t: 2.3 * (1 - 0.15 * t**3)):
        assert trend_of(noisy(shape, 400, 0.005)).word == "falling"


def test_an_empty_series_is_too_short() -> None:
    trend = trend_of([])
    assert (trend.word, trend.steps, trend.first, trend.last) == ("too short", 0, None, None)


@pytest.mark.parametrize("steps", [60, 200, 1000])
def test_a_slow_and_steady_fall_crawls_and_says_how_far_it_has_to_go(steps: int) -> None:
    for seed in range(20):
        trend = trend_of(noisy(lambda t: 2.3 - 0.12 * t, steps, 0.005, seed))
        assert trend.word == "crawling"
        assert trend.falls
        assert trend.runs_to_go == pytest.approx(2.18 / 0.12, rel=0.3)


@pytest.mark.parametrize(
    "shape",
    [
        lambda t: 2.3 - 0.5 * t,  # it falls well
        lambda t: 2.2 + 0.1 * math.exp(-20 * t),  # it has levelled off
        lambda t: -2.3 - 0.1 * t,  # 0 is not its goal
    ],
)
def test_what_falls_otherwise_does_not_crawl(shape: object) -> None:
    trend = trend_of(noisy(shape, 200, 0.005))
    assert (trend.word, trend.runs_to_go) == ("falling", None)


def test_few_values_do_not_crawl() -> None:
    assert trend_of(noisy(lambda t: 2.3 - 0.12 * t, 40, 0.001)).word == "falling"


def test_the_statistics_behind_the_word() -> None:
    trend = trend_of(noisy(lambda t: 2 - t, 1000, 0.02))
    assert trend.change == pytest.approx(-0.47, abs=0.03)
    assert trend.noise == pytest.approx(0.01, rel=0.2)
    assert trend.error is not None
    assert 0 < trend.error < 0.005
    losses = noisy(0.5, 400, 0.01)
    losses[100] = losses[200] = losses[300] = 5.0
    assert trend_of(losses).spikes == 3
