"""How a run went, for rules about magnitudes: a number alone is no finding, only one with a consequence."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, TypeVar

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
from unstuck.record import goals
from unstuck.record.trend import Trend, trend_of

if TYPE_CHECKING:
    from unstuck.record import Record

SUFFERING = ("flat", "rising", "spiking", "non-finite")
STUCK = ("flat", "crawling")
HURT = ("rising", "spiking", "non-finite")
USUAL = 1e-3
"""The share of itself by which a weight that learns well changes in a step."""
ADAPTIVE = ("ada", "adam", "prop", "lion", "lamb", "muon", "sophia")
"""What the names of optimizers contain whose steps do not grow with the gradient."""
NOT_COMPARED = ("Embedding", "EmbeddingBag")
"""Most rows of these have no gradient in most steps."""
SMALLEST_START = 1e-3
"""Weights that began smaller than this (root mean square) were meant to begin near 0, as LoRA's do."""

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def remembered(
    function: Callable[Concatenate[Record, _Args], _Result],
) -> Callable[Concatenate[Record, _Args], _Result]:
    """Many rules ask the same of one record: keep the answers about the last one. Events cannot be hashed."""
    kept: list[tuple[object, object, _Result]] = []

    @functools.wraps(function)
    def ask(record: Record, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        if kept and kept[0][0] is not record.events:
            kept.clear()
        for _, given, result in kept:
            if given == (args, kwargs):
                return result
        kept.append((record.events, (args, kwargs), function(record, *args, **kwargs)))
        return kept[-1][2]

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
    """The gauges of each optimizer under the last names told of it."""
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
    """Which way the loss went that this optimizer minimises; without a name, that of the only one."""
    return goals.with_moving_goal(trend_of([value for _, value in losses(record, optimizer)]), record)


def losses(record: Record, optimizer: str = "") -> list[tuple[int, float]]:
    """Loss by step of one optimizer, or of all gauges; NaN where a step is known to have broken it."""
    broken = {event.step for event in record.of(NonFinite)}
    found = []
    for gauge in record.of(Gauges):
        if optimizer and gauge.optimizer and gauge.optimizer != optimizer:
            continue
        if gauge.loss is not None:
            found.append((gauge.step, gauge.loss))
        elif gauge.step in broken:
            found.append((gauge.step, math.nan))
    between = (pair for told in record.of(LossesBetween) for pair in zip(told.steps, told.values, strict=True))
    found += [(step, value) for step, value in between if value is not None]
    return sorted(found, key=lambda pair: pair[0])


def suffers(record: Record, optimizer: str = "") -> bool:
    """Does training suffer: is the loss flat, rising, spiking or broken? Several optimizers share no single loss."""
    return trend(record, optimizer).word in SUFFERING


def alternating(record: Record) -> bool:
    """Do several optimizers take turns, so that a loss need not fall?"""
    return len({step.optimizer for step in record.of(OptimizerStep)}) > 1


@remembered
def sole_optimizer(record: Record) -> OptimizerSeen | None:
    """The one optimizer that steps; None where several take turns, whose losses need not fall."""
    stepping = {step.optimizer for step in record.of(OptimizerStep)}
    found = [seen for seen in record.setup().optimizers if seen.optimizer in stepping]
    return found[0] if len(stepping) == 1 and found else None


def is_adaptive(optimizer: OptimizerSeen) -> bool:
    """Does it divide by the size of past gradients, so that its steps do not grow with them?"""
    return any(word in optimizer.kind.lower() for word in ADAPTIVE)


@remembered
def weights(record: Record) -> tuple[TensorSeries, ...]:
    """The tensors whose magnitudes can be held against each other: no biases, gains, embeddings, nothing near 0."""
    return tuple(series for series in tensors(record) if _is_comparable(series))


def _is_comparable(series: TensorSeries) -> bool:
    start = next(iter(known(series.weight_norm)), 0.0)
    wide = series.dimension >= 2 and series.kind not in NOT_COMPARED and series.size > 0
    multiple = start / SMALLEST_START
    return wide and multiple * multiple >= series.size


@remembered
def pace(record: Record) -> list[tuple[int, float]]:
    """By step, how much of itself a weight changed: the median over the weights."""
    columns: dict[int, list[float]] = {}
    for series in weights(record):
        for step, ratio in zip(series.steps, series.update_ratio, strict=True):
            if ratio is not None:
                columns.setdefault(step, []).append(ratio)
    return [(step, median(ratios) or 0.0) for step, ratios in sorted(columns.items())]


@remembered
def grad_norms(record: Record) -> list[tuple[int, float]]:
    """By step, the norm of all gradients the optimizer used, so after clipping; without what is not finite."""
    norms = ((step.step, step.grad_norm) for step in record.of(OptimizerStep))
    return [(step, norm) for step, norm in norms if norm is not None and math.isfinite(norm)]


@remembered
def rates(record: Record) -> list[tuple[int, tuple[float, ...]]]:
    """By step, the learning rate of every group. One that is not finite is no magnitude: G10 names it."""
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
    """With one significant digit, as a person would type a learning rate."""
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e+") if value < 1e-2 or value >= 100 else f"{value:.1g}"


def known(values: Sequence[float | None]) -> list[float]:
    """Without what was not measured."""
    return [value for value in values if value is not None]


def median(values: Sequence[float]) -> float | None:
    """The middle value; None of nothing."""
    return sorted(values)[len(values) // 2] if values else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them lies below; None of nothing."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else None


def longest_run(flags: Sequence[bool]) -> int:
    """How many times in a row something was so, at most."""
    return max((sum(1 for _ in group) for so, group in itertools.groupby(flags) if so), default=0)
