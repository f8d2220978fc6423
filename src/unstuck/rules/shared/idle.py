"""Which parameters never had a gradient, although an optimizer holds them and others of the same model learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import ModelSeen, OptimizerSeen
from unstuck.record import Record
from unstuck.rules.shared import dynamics

if TYPE_CHECKING:
    from unstuck.rules.shared.dynamics import TensorSeries

FEWEST = 10
"""Steps in which a parameter was looked at and had no gradient."""


class Idle(NamedTuple):
    """The largest part of a model that never had a gradient."""

    model: ModelSeen
    name: str
    """A module, or a parameter of a module that has others."""
    tensors: list[TensorSeries]


class Cut(NamedTuple):
    """The first layers of a model, if they run and never have a gradient."""

    model: ModelSeen
    still: list[TensorSeries]
    trainable: int
    """How many trainable parameters of the model the optimizer holds."""
    next_name: str
    """The first parameter that has a gradient."""


class _Held(NamedTuple):
    """The trainable parameters of one model that one optimizer holds, by name."""

    model: ModelSeen
    idle: dict[str, TensorSeries]
    learning: dict[str, TensorSeries]
    names: list[str]


@dynamics.remembered
def idle_parts(record: Record) -> list[Idle]:
    """The parts of models without a gradient in any watched step, and unchanged by anything else."""
    return [part for held in _held(record) for part in _parts(held)]


@dynamics.remembered
def cut_parts(record: Record) -> list[Cut]:
    """The first layers that ran, where all of them have no gradient and layers after them have."""
    found = []
    for held in _held(record):
        ran = [series for series in held.idle.values() if series.depth >= 0]
        after = sorted((series for series in held.learning.values() if series.depth >= 0), key=lambda each: each.depth)
        still = [series for series in ran if after and series.depth < after[0].depth]
        if still:
            still.sort(key=lambda series: series.depth)
            found.append(Cut(held.model, still, len(held.names), after[0].name))
    return found


@dynamics.remembered
def _held(record: Record) -> list[_Held]:
    keys = {seen.optimizer: {fact.key for fact in seen.parameters} for seen in record.of(OptimizerSeen)}
    by_optimizer: dict[str, dict[str, TensorSeries]] = {}
    for series in dynamics.tensors(record):
        by_optimizer.setdefault(series.optimizer, {})[series.name] = series
    found = []
    for model in record.setup().models:
        for optimizer, tensors in by_optimizer.items():
            facts = [fact for fact in model.parameters if fact.trainable and fact.key in keys.get(optimizer, ())]
            names = [fact.name for fact in facts if fact.name in tensors]
            idle = {name: tensors[name] for name in names if _is_idle(tensors[name])}
            learning = {name: tensors[name] for name in names if any(tensors[name].grad_norm)}
            if idle and learning:
                found.append(_Held(model, idle, learning, names))
    return found


def _is_idle(series: TensorSeries) -> bool:
    """No gradient in any step, and not changed by anything else either."""
    measured = len(series.steps) >= FEWEST and all(norm is None for norm in series.grad_norm)
    return measured and set(series.update_ratio) <= {0.0, None} and len(set(series.weight_norm)) == 1


def _parts(held: _Held) -> Iterator[Idle]:
    """The outermost modules whose parameters are all idle; single parameters of the others."""
    parts: dict[str, list[TensorSeries]] = {}
    for name, series in held.idle.items():
        outermost, path = name, name.rpartition(".")[0]
        while path and all(other in held.idle for other in held.names if other.startswith(f"{path}.")):
            outermost, path = path, path.rpartition(".")[0]
        parts.setdefault(outermost, []).append(series)
    for part, tensors in parts.items():
        yield Idle(held.model, part, sorted(tensors, key=lambda series: series.name))
