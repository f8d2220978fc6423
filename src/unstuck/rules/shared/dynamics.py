"""How a run went, for rules about magnitudes: norms and updates by step, and when and how the loss went wrong."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from unstuck.events import (
    Gauges,
    LossesBetween,
    NonFinite,
    OptimizerSeen,
    OptimizerStep,
    Place,
    TensorGauges,
    TensorsNamed,
)
from unstuck.record import Record, goals
from unstuck.record.outcome import Achieved, Outcome, outcome_of
from unstuck.record.trainings import players
from unstuck.record.trend import Direction, Trend, spikes_in, trend_of

FAR = 0.4
"""The share of the way from a guess to perfection that is far; a model that answers alike does not get there."""
UNHEALTHY = (Direction.FLAT, Direction.RISING, Direction.SPIKING, Direction.NON_FINITE)
STUCK = (Direction.FLAT, Direction.CRAWLING)
USUAL = 1e-3
"""The relative change per step of a weight that learns well."""
ADAPTIVE = ("ada", "adam", "prop", "lion", "lamb", "muon", "sophia")
"""Parts of the names of optimizers whose steps do not grow with the gradient."""
NOT_COMPARED = ("Embedding", "EmbeddingBag")
"""Most rows of these have no gradient in most steps."""
SMALLEST_START = 1e-3
"""Weights that start smaller than this (root mean square) start near 0 on purpose, as in LoRA."""

JUMP = 3.0
"""A loss this many times its previous level has jumped."""
EARLY_JUMP = 10.0
"""The same while there are few values to estimate the level."""
FEW = 10
REPLACED = 0.5
"""A relative change per step that leaves little of a weight."""
SPIKE = 10.0
"""A gradient norm this many times the usual one is a spike."""
SPIKE_FEWEST = 8
NEAR = 12
"""A rise of the loss this many steps later is not attributed to a spike."""

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def remembered(
    function: Callable[Concatenate[Record, _Args], _Result],
) -> Callable[Concatenate[Record, _Args], _Result]:
    """Cache the results for the last record, because many rules ask the same. Events cannot be hashed."""
    cache: list[tuple[object, object, _Result]] = []

    @functools.wraps(function)
    def ask(record: Record, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        if cache and cache[0][0] is not record.events:
            cache.clear()
        for _, given, result in cache:
            if given == (args, kwargs):
                return result
        cache.append((record.events, (args, kwargs), function(record, *args, **kwargs)))
        return cache[-1][2]

    return ask


class TensorSeries(NamedTuple):
    """One parameter tensor over the sampled steps of a run; a value is None where it was not measured."""

    optimizer: str
    name: str
    kind: str
    size: int
    dimension: int
    group: int
    depth: int
    steps: tuple[int, ...]
    grad_norm: tuple[float | None, ...]
    grad_max: tuple[float | None, ...]
    grad_zero: tuple[float | None, ...]
    weight_norm: tuple[float | None, ...]
    update_ratio: tuple[float | None, ...]
    unmoved: tuple[float | None, ...]


@remembered
def tensors(record: Record) -> tuple[TensorSeries, ...]:
    """Every parameter of every optimizer, in the order in which their modules run."""
    found: list[TensorSeries] = []
    for named, gauges in _by_layout(record):
        steps = tuple(gauge.step for gauge in gauges)
        for column, name in enumerate(named.names):
            found.append(
                TensorSeries(
                    named.optimizer,
                    name,
                    named.kinds[column],
                    named.sizes[column],
                    named.dimensions[column],
                    named.groups[column],
                    named.depths[column],
                    steps,
                    *(_column(gauges, field, column) for field in TensorSeries._fields[8:]),
                )
            )
    return tuple(found)


def _by_layout(record: Record) -> Iterator[tuple[TensorsNamed, list[TensorGauges]]]:
    """The gauges of each optimizer under its last recorded names."""
    named: dict[str, TensorsNamed] = {}
    gauges: dict[str, list[TensorGauges]] = {}
    for event in record.events:
        if isinstance(event, TensorsNamed):
            named[event.optimizer], gauges[event.optimizer] = event, []
        elif isinstance(event, TensorGauges) and event.optimizer in named:
            gauges[event.optimizer].append(event)
    for optimizer, names in named.items():
        if gauges[optimizer]:
            yield names, gauges[optimizer]


def _column(gauges: Sequence[TensorGauges], field: str, column: int) -> tuple[float | None, ...]:
    rows = (getattr(gauge, field) for gauge in gauges)
    return tuple(row[column] if column < len(row) else None for row in rows)


@remembered
def trend(record: Record, optimizer: str = "") -> Trend:
    """The trend of the loss that this optimizer minimises; without a name, of the only optimizer."""
    return goals.with_moving_goal(trend_of([value for _, value in losses(record, optimizer)]), record)


def losses(record: Record, optimizer: str = "") -> list[tuple[int, float]]:
    """Loss by step of one optimizer, or of all gauges; NaN where a step is known to have made it non-finite."""
    broken = {event.step for event in record.of(NonFinite)}
    found = []
    for gauge in record.of(Gauges):
        if optimizer and gauge.optimizer and gauge.optimizer != optimizer:
            continue
        if gauge.loss is not None:
            found.append((gauge.step, gauge.loss))
        elif gauge.step in broken:
            found.append((gauge.step, math.nan))
    for event in record.of(LossesBetween):
        if not optimizer or event.optimizer in ("", optimizer):
            pairs = zip(event.steps, event.values, strict=True)
            found += [(step, value) for step, value in pairs if value is not None]
    return sorted(found, key=lambda pair: pair[0])


@remembered
def outcome(record: Record) -> Outcome | None:
    """What the training in this record achieved."""
    return outcome_of(record)


def learns(record: Record) -> bool:
    """Is it known to learn, because it beats a guess by far, in its loss or in the share of answers that are right?"""
    found = outcome(record)
    if found is None or found.word is not Achieved.LEARNS:
        return False
    if found.returns is not None:
        return True
    gain = found.beats_guess_by
    share = None
    if found.right is not None and found.right_guess is not None and found.right_guess < 1:
        share = (found.right - found.right_guess) / (1 - found.right_guess)
    return (gain is not None and gain > FAR) or (share is not None and share > FAR)


def does_not_beat_a_guess(record: Record) -> bool:
    """Is the loss no better than that of a constant answer, wherever it came from?"""
    found = outcome(record)
    return found is not None and found.word is Achieved.GUESSES


def is_unhealthy(record: Record, optimizer: str = "") -> bool:
    """Is the loss flat, rising, spiking or non-finite, or no better than a guess?"""
    if learns(record):
        return False
    return trend(record, optimizer).word in UNHEALTHY or does_not_beat_a_guess(record)


def is_stuck(record: Record) -> bool:
    """Is the loss flat or crawling, or did it come down only to where a guess would be, or not even there?"""
    word = trend(record).word
    if learns(record):
        return False
    # What jumped, rises or spikes before it ends above a guess is not stuck: it went wrong.
    return word in STUCK or (does_not_beat_a_guess(record) and word not in UNHEALTHY and failure(record) is None)


@remembered
def alternating(record: Record) -> bool:
    """Do several optimizers alternate, each with a loss of its own, which need not fall?"""
    return len(players(record)) > 1


@remembered
def sole_optimizer(record: Record) -> OptimizerSeen | None:
    """The one optimizer that steps; None if several alternate, whose losses need not fall."""
    stepping = {step.optimizer for step in record.of(OptimizerStep)}
    found = [seen for seen in record.setup().optimizers if seen.optimizer in stepping]
    return found[0] if len(stepping) == 1 and found else None


def is_adaptive(optimizer: OptimizerSeen) -> bool:
    """Does it divide by the size of past gradients, so that its steps do not grow with them?"""
    return any(word in optimizer.kind.lower() for word in ADAPTIVE)


@remembered
def weights(record: Record) -> tuple[TensorSeries, ...]:
    """The tensors whose magnitudes can be compared: no biases, gains, embeddings, or weights near 0."""
    return tuple(series for series in tensors(record) if _is_comparable(series))


def _is_comparable(series: TensorSeries) -> bool:
    start = next(iter(known(series.weight_norm)), 0.0)
    wide = series.dimension >= 2 and series.kind not in NOT_COMPARED and series.size > 0
    multiple = start / SMALLEST_START
    return wide and multiple * multiple >= series.size


@remembered
def pace(record: Record) -> list[tuple[int, float]]:
    """By step, the relative change of a weight: the median over the weights."""
    columns: dict[int, list[float]] = {}
    for series in weights(record):
        for step, ratio in zip(series.steps, series.update_ratio, strict=True):
            if ratio is not None:
                columns.setdefault(step, []).append(ratio)
    return [(step, median(ratios) or 0.0) for step, ratios in sorted(columns.items())]


@remembered
def grad_norms(record: Record) -> list[tuple[int, float]]:
    """By step, the norm of all gradients the optimizer used, after clipping; finite values only."""
    norms = ((step.step, step.grad_norm) for step in record.of(OptimizerStep))
    return [(step, norm) for step, norm in norms if norm is not None and math.isfinite(norm)]


@remembered
def rates(record: Record) -> list[tuple[int, tuple[float, ...]]]:
    """By step, the learning rate of every group; finite values only."""
    return [
        (gauge.step, gauge.rates) for gauge in record.of(Gauges) if gauge.rates and all(map(math.isfinite, gauge.rates))
    ]


def highest_rate(record: Record, groups: set[int] | None = None) -> float:
    """The highest learning rate of any group, or of any of these, at any time; 0 if none is known."""
    every = ((number, rate) for _, values in rates(record) for number, rate in enumerate(values))
    return max((rate for number, rate in every if groups is None or number in groups), default=0.0)


def model_place(record: Record) -> Place | None:
    """Where the model is called."""
    return next((model.place for model in record.setup().models if model.place), None)


def step_place(record: Record) -> Place | None:
    """Where the optimizer steps."""
    return next((step.place for step in record.of(OptimizerStep) if step.place), None)


def rounded(value: float) -> str:
    """With one significant digit, as one would type a learning rate."""
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+") if value < 1e-2 or value >= 100 else f"{value:.1g}"


def known(values: Sequence[float | None]) -> list[float]:
    """Only the values that were measured."""
    return [value for value in values if value is not None]


def median(values: Sequence[float]) -> float | None:
    """The median; None if there are no values."""
    return sorted(values)[len(values) // 2] if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them is below; None if there are no values."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else None


class Failure(NamedTuple):
    """How the loss went wrong: `word` completes "The loss ..."."""

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


@remembered
def failure(record: Record) -> Failure | None:
    """How and when the loss of the only optimizer went wrong; None if it did not, or if that is unknown."""
    if sole_optimizer(record) is None:
        return None
    values = losses(record)
    course = trend(record)
    if course.word == Direction.NON_FINITE:
        return _broken(record, values)
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    if len(finite) < FEW or course.first is None or course.last is None or goals.may_rise(record):
        return None
    if jump := _jump(finite, course.last, _early_factor(record)):
        return jump
    if course.word == Direction.SPIKING:
        first = spikes_in([value for _, value in finite])[0]
        return Failure(f"spikes, {course.spikes} times so far", finite[first][0], course.first, None)
    if course.word == Direction.RISING and course.last > 1.5 * course.first > 0:
        return Failure(f"rises from {course.first:.4g} to {course.last:.4g}", finite[-1][0], course.first, course.last)
    return _oscillation(finite)


def _broken(record: Record, values: Sequence[tuple[int, float]]) -> Failure | None:
    """The loss ended non-finite; a matter of magnitudes only if it had grown before, or a weight overflowed."""
    finite = [(step, value) for step, value in values if math.isfinite(value)]
    event = next(record.of(NonFinite), None)
    if event is None or not finite:
        return None
    first, worst = abs(finite[0][1]), max(abs(value) for _, value in finite)
    grown = worst > EARLY_JUMP * first
    if not grown and event.what not in ("parameter", "gradient", "activation"):
        return None
    start = _start_of_rise(finite)
    return Failure(f"went from {finite[0][1]:.4g} to {_word(event.value)}", start or event.step, finite[0][1], None)


def _word(value: str) -> str:
    return "NaN" if value == "nan" else "infinity"


def _start_of_rise(finite: Sequence[tuple[int, float]]) -> int | None:
    """The step after the lowest loss, if the run continued."""
    lowest = min(range(len(finite)), key=lambda index: finite[index][1])
    return finite[lowest + 1][0] if lowest + 1 < len(finite) else None


def _early_factor(record: Record) -> float:
    """What counts as a jump while there are few values: less, if the first updates overwrote the weights."""
    first = median([ratio for _, ratio in pace(record)[:3]]) or 0.0
    return JUMP if first >= REPLACED else EARLY_JUMP


def _jump(finite: Sequence[tuple[int, float]], last: float, early: float) -> Failure | None:
    """The first jump of several values after which the loss never fell well below its start."""
    losses = [value for _, value in finite]
    if min(losses) < 0 or last < 0.5 * losses[0]:
        return None
    recovered = last < 0.9 * losses[0]
    for index in range(1, len(losses)):
        level = median(losses[max(0, index - FEW) : index]) or 0.0
        if early == JUMP and index < 3 * FEW:
            level = min(level, losses[0])  # with a warm-up the loss jumps gradually
        factor = early if index < FEW else EARLY_JUMP if recovered else JUMP
        # One high value may be one odd batch, and noisy losses vary: the next values must be above all before.
        after, before = losses[index : index + 3], max(losses[max(0, index - FEW) : index])
        if losses[index] > factor * level > 0 and _middle(after) > factor * level and min(after) > before:
            return Failure(f"jumped from {level:.4g} to {max(losses[index:]):.4g}", finite[index][0], level, last)
    return None


def _middle(values: Sequence[float]) -> float:
    return median(values) or 0.0 if len(values) == 3 else 0.0


def _oscillation(finite: Sequence[tuple[int, float]]) -> Failure | None:
    """Up and down with every step, by a large share, and no lower at the end."""
    changes = [after[1] - before[1] for before, after in itertools.pairwise(finite) if after[0] == before[0] + 1]
    reversals = sum(one * other < 0 for one, other in itertools.pairwise(changes))
    losses = [value for _, value in finite]
    level, swing = median(losses) or 0.0, median([abs(change) for change in changes]) or 0.0
    tail = median(losses[-len(losses) // 3 :]) or 0.0
    if len(changes) < 20 or reversals < 0.9 * (len(changes) - 1) or min(losses) <= 0:
        return None
    if swing < 0.2 * level or tail < 0.7 * losses[0]:
        return None
    low, high = quantile(losses, 0.1) or 0.0, quantile(losses, 0.9) or 0.0
    return Failure(f"swings between {low:.4g} and {high:.4g} with every step", finite[-1][0], low, high)


@remembered
def problem(record: Record) -> str:
    """Completes "the loss ..." if the training of the only optimizer does not progress; empty if it does."""
    if sole_optimizer(record) is None:
        return ""
    if found := failure(record):
        return found.word
    if learns(record):
        return ""
    words = {"flat": "is flat", "crawling": "crawls", "rising": "rises", "spiking": "spikes"}
    words["non-finite"] = "ended non-finite"
    word = words.get(trend(record).word, "")
    return word or (worse_than_a_guess(record) if does_not_beat_a_guess(record) else "")


def worse_than_a_guess(record: Record) -> str:
    """Completes "the loss ..." for one that does not beat a guess."""
    found = outcome(record)
    if found is None or found.last is None or found.guess is None:
        return "is no better than that of a constant answer"
    return f"ends at {found.last:.3g}, where a constant answer costs {found.guess:.3g}"


@remembered
def spikes(record: Record) -> list[tuple[int, float, float]]:
    """Steps with a gradient far above those before: step, norm, and the usual norm before it."""
    norms = grad_norms(record)
    found = []
    for index in range(SPIKE_FEWEST, len(norms)):
        usual = median([norm for _, norm in norms[max(0, index - 50) : index]]) or 0.0
        if norms[index][1] > SPIKE * usual > 0:
            found.append((*norms[index], usual))
    return found


@remembered
def costly_spikes(record: Record) -> list[Spike]:
    """The spikes after which the loss rose above twice its previous level, or was no longer finite."""
    values = losses(record)
    # A loss that changes its sign has no level: only a jump above all earlier values counts.
    worse = 2.0 if all(value > 0 for _, value in values if math.isfinite(value)) else 10.0
    worse = math.inf if goals.may_rise(record) else worse
    found = []
    for step, norm, usual in spikes(record):
        before = [abs(value) for at, value in values if at < step and math.isfinite(value)][-FEW:]
        after = [abs(value) for at, value in values if step < at <= step + NEAR][:3]
        if not before or not after:
            continue
        level, worst = median(before) or 0.0, max(after)
        if not all(map(math.isfinite, after)):
            found.append(Spike(step, norm, usual, level, None))
        elif worst > worse * level:
            found.append(Spike(step, norm, usual, level, worst))
    return found


@remembered
def pace_before(record: Record) -> float | None:
    """The typical relative change of a weight in the steps before the loss went wrong."""
    found = failure(record)
    if found is None:
        return None
    return median([ratio for step, ratio in pace(record) if step < found.step][-2 * FEW :])
