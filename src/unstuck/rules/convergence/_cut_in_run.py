"""O03 inside a model: its first layers run in every step and never get a gradient, while those behind them learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import Forward, ModelSeen, OptimizerStep, Place, StateLoaded
from unstuck.events.measurements import LayersRan
from unstuck.rules.shared.dynamics import TensorSeries, tensors

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST = 10
STEADY = 3


class Cut(NamedTuple):
    """Parameters without a gradient, in the order in which their layers run."""

    names: list[str]
    trainable: int
    steps: int
    model: str
    first_learning: str
    """The first parameter behind the cut."""
    place: Place | None


def cut_beginning(record: Record) -> Cut | None:
    """Only the beginning of a model is looked at: heads that nothing uses, experts and branches run behind what learns.

    Weights that were loaded may be meant to stay as they are.
    """
    steps, layers = list(record.of(OptimizerStep)), list(record.of(LayersRan))
    alone = len({step.optimizer for step in steps}) == len({ran.model for ran in layers}) == 1
    if record.ended is None or not alone or len(steps) < FEWEST or len(layers) < STEADY or any(record.of(StateLoaded)):
        return None
    may_train = {fact.name for model in record.of(ModelSeen) for fact in model.parameters if fact.trainable}
    series = [each for each in tensors(record) if each.name in may_train]
    still = [each for each in series if _never_reached(each)]
    learning = [each for each in series if any(each.grad_norm)]
    if not still or not learning or not _all_before(still, learning) or not _run_always(still, layers):
        return None
    if any(step.parameters is None or step.parameters - (step.with_grad or 0) != len(still) for step in steps):
        return None
    return Cut(
        [each.name for each in still],
        len(series),
        record.ended.steps or len(steps),
        layers[0].model,
        learning[0].name,
        next((forward.place for forward in record.of(Forward) if forward.model == layers[0].model), None),
    )


def _never_reached(each: TensorSeries) -> bool:
    """No gradient in any step, and not moved by anything else either."""
    without = all(norm is None for norm in each.grad_norm)
    return len(each.steps) >= FEWEST and without and set(each.update_ratio) == {0.0}


def _all_before(still: list[TensorSeries], learning: list[TensorSeries]) -> bool:
    """Did all of them run, and every one of the first before any of the others?"""
    if any(each.depth < 0 for each in (*still, *learning)):
        return False
    return max(each.depth for each in still) < min(each.depth for each in learning)


def _run_always(still: list[TensorSeries], layers: list[LayersRan]) -> bool:
    """Did their layers run, with gradients recorded, in every forward pass that was looked at?"""
    owners = {each.name.rpartition(".")[0] for each in still}
    return all(owners <= set(ran.names) for ran in layers)
