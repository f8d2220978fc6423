"""What went wrong with a loss, when, and which gradients and updates came right before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import NonFinite
from unstuck.record import goals
from unstuck.rules.shared import dynamics

if TYPE_CHECKING:
    from unstuck.record import Record

JUMP = 3.0
"""A loss this many times the level before has jumped."""
EARLY_JUMP = 10.0
"""While there are few values to know the level by."""
FEW = 10
REPLACED = 0.5
"""A share of itself by which a weight changes in a step that leaves little of it."""
SPIKE = 10.0
"""A gradient norm this many times the usual one is a spike."""
SPIKE_FEWEST = 8
NEAR = 12
"""Damage this many steps later, or more, is not laid to a spike."""


class Harm(NamedTuple):
    """Training was hurt: `word` completes "The loss ..."."""

    word: str
    step: int
    """The first step whose loss shows it."""
    before: float
    after: float | None


class Spike(NamedTuple):
    """A gradient far above the usual, after which the loss was worse."""

    step: int
    norm: float
    usual: float
    before: float
    after: float | None


@dynamics.remembered
def harm(record: Record) -> Harm | None:
    """How and when the loss of the only optimizer was hurt; None if it was not, or cannot be told."""
    if dynamics.sole_optimizer(record) is None:
        return None
    values = dynamics.losses(record)
    trend = dynamics.trend(record)
    if trend.word == "non-finite":
        return _broken(record, values)
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    if len(finite) < FEW or trend.first is None or trend.last is None or goals.may_rise(record):
        return None
    if jump := _jump(finite, trend.last, _early_factor(record)):
        return jump
    if trend.word == "spiking":
        return Harm(f"spikes, {trend.spikes} times so far", _first_spike(finite), trend.first, None)
    if trend.word == "rising" and trend.last > 1.5 * trend.first > 0:
        return Harm(f"rises from {trend.first:.4g} to {trend.last:.4g}", finite[-1][0], trend.first, trend.last)
    return _oscillation(finite)


def _broken(record: Record, values: Sequence[tuple[int, float]]) -> Harm | None:
    """The loss ended non-finite; harm of magnitudes only if it had grown before, or a weight overflowed."""
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    event = next(record.of(NonFinite), None)
    if event is None or not finite:
        return None
    first, worst = abs(finite[0][1]), max(abs(value) for _, value in finite)
    grown = worst > EARLY_JUMP * first
    if not grown and event.what not in ("parameter", "gradient", "activation"):
        return None
    start = _start_of_rise(finite)
    return Harm(f"went from {finite[0][1]:.4g} to {_word(event.value)}", start or event.step, finite[0][1], None)


def _word(value: str) -> str:
    return "NaN" if value == "nan" else "infinity"


def _start_of_rise(finite: Sequence[tuple[int, float]]) -> int | None:
    """The step after the lowest loss, if the rest of the run lies above it."""
    lowest = min(range(len(finite)), key=lambda index: finite[index][1])
    return finite[lowest + 1][0] if lowest + 1 < len(finite) else None


def _early_factor(record: Record) -> float:
    """What counts as a jump while there are few values: less, where the first updates replaced the weights."""
    first = dynamics.median([ratio for _, ratio in dynamics.pace(record)[:3]]) or 0.0
    return JUMP if first >= REPLACED else EARLY_JUMP


def _jump(finite: Sequence[tuple[int, float]], last: float, early: float) -> Harm | None:
    """The first upward jump, of several values, from which the loss never came back well under where it began."""
    losses = [value for _, value in finite]
    if min(losses) < 0 or last < 0.5 * losses[0]:
        return None
    recovered = last < 0.9 * losses[0]
    for index in range(1, len(losses)):
        level = dynamics.median(losses[max(0, index - FEW) : index]) or 0.0
        if early == JUMP and index < 3 * FEW:
            level = min(level, losses[0])  # a rate that is warmed up throws the loss up by and by
        factor = early if index < FEW else EARLY_JUMP if recovered else JUMP
        # One high value may be one odd batch, and of noisy losses any may be high: what follows lies above all before.
        after, before = losses[index : index + 3], max(losses[max(0, index - FEW) : index])
        if losses[index] > factor * level > 0 and _middle(after) > factor * level and min(after) > before:
            return Harm(f"jumped from {level:.4g} to {max(losses[index:]):.4g}", finite[index][0], level, last)
    return None


def _middle(values: Sequence[float]) -> float:
    return dynamics.median(values) or 0.0 if len(values) == 3 else 0.0


def _first_spike(finite: Sequence[tuple[int, float]]) -> int:
    for index in range(FEW, len(finite)):
        level = dynamics.median([value for _, value in finite[index - FEW : index]]) or 0.0
        if finite[index][1] > JUMP * level:
            return finite[index][0]
    return finite[-1][0]


def _oscillation(finite: Sequence[tuple[int, float]]) -> Harm | None:
    """Up and down with every step, by a good share of itself, and no lower at the end."""
    changes = [after[1] - before[1] for before, after in itertools.pairwise(finite) if after[0] == before[0] + 1]
    turns = sum(one * other < 0 for one, other in itertools.pairwise(changes))
    losses = [value for _, value in finite]
    level, swing = dynamics.median(losses) or 0.0, dynamics.median([abs(change) for change in changes]) or 0.0
    tail = dynamics.median(losses[-len(losses) // 3 :]) or 0.0
    if len(changes) < 20 or turns < 0.9 * (len(changes) - 1) or min(losses) <= 0:
        return None
    if swing < 0.2 * level or tail < 0.7 * losses[0]:
        return None
    low, high = dynamics.quantile(losses, 0.1) or 0.0, dynamics.quantile(losses, 0.9) or 0.0
    return Harm(f"swings between {low:.4g} and {high:.4g} with every step", finite[-1][0], low, high)


@dynamics.remembered
def ailment(record: Record) -> str:
    """What completes "the loss ..." where the training of the only optimizer does not get on; empty where it does."""
    if dynamics.sole_optimizer(record) is None:
        return ""
    if hurt := harm(record):
        return hurt.word
    words = {"flat": "is flat", "crawling": "crawls", "rising": "rises", "spiking": "spikes"}
    words["non-finite"] = "ended non-finite"
    return words.get(dynamics.trend(record).word, "")


@dynamics.remembered
def spikes(record: Record) -> list[tuple[int, float, float]]:
    """Steps with a gradient far above those before: step, norm, the usual norm until then."""
    norms = dynamics.grad_norms(record)
    found = []
    for index in range(SPIKE_FEWEST, len(norms)):
        usual = dynamics.median([norm for _, norm in norms[max(0, index - 50) : index]]) or 0.0
        if norms[index][1] > SPIKE * usual > 0:
            found.append((*norms[index], usual))
    return found


@dynamics.remembered
def spikes_that_hurt(record: Record) -> list[Spike]:
    """Of the spikes those after which the loss rose above twice the level before, or was not finite any more."""
    values = dynamics.losses(record)
    # A loss that changes its sign has no level of its own: only a leap above all that came before counts.
    worse = 2.0 if all(value > 0 for _, value in values if math.isfinite(value)) else 10.0
    worse = math.inf if goals.may_rise(record) else worse
    found = []
    for step, norm, usual in spikes(record):
        before = [abs(value) for at, value in values if at < step and math.isfinite(value)][-FEW:]
        after = [abs(value) for at, value in values if step < at <= step + NEAR][:3]
        if not before or not after:
            continue
        level, worst = dynamics.median(before) or 0.0, max(after)
        if not all(map(math.isfinite, after)):
            found.append(Spike(step, norm, usual, level, None))
        elif worst > worse * level:
            found.append(Spike(step, norm, usual, level, worst))
    return found


@dynamics.remembered
def pace_before(record: Record) -> float | None:
    """The typical share of itself by which a weight changed in the steps before training was hurt."""
    hurt = harm(record)
    if hurt is None:
        return None
    return dynamics.median([ratio for step, ratio in dynamics.pace(record) if step < hurt.step][-2 * FEW :])
