"""What sweeps of the learning rate, and short trainings at constant rates, say about the rate to use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from unstuck.findings.curve import Curve, smoothed
from unstuck.trials.runner import Outcome

WINDOW = 0.4
"""Decades over which a sweep is smoothed."""
GIVEN_BACK = 0.5
"""A sweep has diverged where the loss has given back this share of what it had gained."""
NOISE = 4.0
"""A change of the loss counts from so many standard deviations of its noise on."""
LEAST_GAIN = 0.01
"""And from this share of the first loss on."""
TAIL = 0.2
"""The result of a short training is the mean of this share of its losses, the last ones."""
TEMPERATURE = 0.08
"""How much worse a training may end, as a share of the gain, to count e times less for the suggested rate."""


class Sweep(msgspec.Struct, frozen=True):
    """One sweep: the smoothed loss at each rate, and whether it ended because the loss blew up."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    level: tuple[float, ...]
    noise: float
    blew_up: bool

    @property
    def start(self) -> float:
        """The level it begins at."""
        return self.level[0]

    @property
    def bottom(self) -> int:
        """Where the level is lowest."""
        return min(range(len(self.level)), key=self.level.__getitem__)

    @property
    def gain(self) -> float:
        """How far the loss fell; 0 if that is no more than noise."""
        fallen = self.start - self.level[self.bottom]
        return fallen if fallen > max(NOISE * self.noise, LEAST_GAIN * abs(self.start)) else 0.0

    @property
    def steepest(self) -> float | None:
        """The rate at which the level falls fastest per decade; None if it never falls."""
        half = max(1, _width(self.rates) // 2)
        slopes = [
            (self.level[min(i + half, self.bottom)] - self.level[max(0, i - half)], i) for i in range(self.bottom + 1)
        ]
        return self.rates[min(slopes)[1]] if self.gain else None

    @property
    def diverged_at(self) -> float | None:
        """The first rate at which much of the gain is lost again, or at which the loss blew up."""
        lost = self.level[self.bottom] + max(GIVEN_BACK * self.gain, NOISE * self.noise)
        beyond = (rate for rate, level in list(zip(self.rates, self.level, strict=True))[self.bottom :] if level > lost)
        return next(beyond, self.rates[-1] if self.blew_up else None)


def sweep_of(outcome: Outcome) -> Sweep | None:
    """What a run under `SweepRate` showed; None if that is too little to say anything."""
    rates, curve = outcome.notes.get("rates") or [], outcome.curve
    pairs = [
        (rates[step - curve.steps[0]], loss)
        for step, loss in zip(curve.steps, curve.losses, strict=True)
        if loss is not None and math.isfinite(loss) and step - curve.steps[0] < len(rates)
    ]
    if len(pairs) < 5 or not pairs[0][0] > 0:
        return None
    rates, losses = tuple(rate for rate, _ in pairs), tuple(loss for _, loss in pairs)
    level = _level(rates, losses)
    early = [abs(one - other) for one, other in zip(losses, level, strict=True)][: max(5, len(losses) // 3)]
    noise = 1.25 * math.fsum(early) / len(early)
    return Sweep(rates, losses, level, noise, "diverged" in outcome.reason or curve.is_broken)


def _width(rates: Sequence[float]) -> int:
    decades = math.log10(rates[-1] / rates[0]) if rates[-1] > rates[0] else 1.0
    return max(3, round(WINDOW * len(rates) / decades) | 1)


def _level(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, ...]:
    """Medians, then means, over a fraction of a decade."""
    width = _width(rates)
    medians = smoothed(losses, width)
    half = width // 2
    windows = (medians[max(0, i - half) : i + half + 1] for i in range(len(medians)))
    return tuple(math.fsum(window) / len(window) for window in windows)


def middle(values: Sequence[float | None]) -> float | None:
    """The geometric mean of what is known, if most of it is."""
    known = [value for value in values if value is not None]
    if not known or 2 * len(known) < len(values):
        return None
    return math.exp(math.fsum(math.log(value) for value in known) / len(known))


def grid(lowest: float, highest: float) -> list[float]:
    """The half decades (1, 3.16, 10, ...) in a range: the same whatever seed found the range, at least one."""
    first, last = math.ceil(2 * math.log10(lowest) - 1e-9), math.floor(2 * math.log10(highest) + 1e-9)
    return [10 ** (number / 2) for number in range(min(first, last), last + 1)]


def result_of(curve: Curve) -> float:
    """Where a training ended; infinite if it ended non-finite."""
    if not curve.losses or curve.losses[-1] is None:
        return math.inf
    tail = curve.finite[-max(5, round(TAIL * len(curve.losses))) :]
    return math.fsum(tail) / len(tail)


def best_rate(results: Mapping[float, float], start: float) -> float:
    """The rate in the middle of those that train best, each counted by how well it does: one run more or less, or
    another seed, moves it little. `results` says where a training at each rate ended, `start` where all began."""
    best = min(results.values())
    gain = max(start - best, 1e-12)
    weights = {rate: math.exp(-(result - best) / (TEMPERATURE * gain)) for rate, result in results.items()}
    total = math.fsum(weights.values())
    return 10 ** (math.fsum(weight * math.log10(rate) for rate, weight in weights.items()) / total)
