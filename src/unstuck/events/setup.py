"""Live objects, read once."""

from __future__ import annotations

import msgspec

from unstuck.events.base import ParameterFact, Trial
from unstuck.events.data import BatchSeen
from unstuck.events.loop import Backward, LossCall, ModelSeen, OptimizerSeen
from unstuck.events.measurements import LayersRan


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Live objects read once: what `check` looks at before training, and what a record shows of the same."""

    models: tuple[ModelSeen, ...] = ()
    optimizers: tuple[OptimizerSeen, ...] = ()
    losses: tuple[LossCall, ...] = ()
    backwards: tuple[Backward, ...] = ()
    batches: tuple[BatchSeen, ...] = ()
    layers: tuple[LayersRan, ...] = ()
    """How large the outputs of the layers were, of models as they were given."""
    missing_gradients: tuple[ParameterFact, ...] = ()
    """Trainable parameters that a probe backward left without a gradient."""
    trial: Trial | None = None
    """What came of running the batch on the side; only in `check`, given a batch and a loss."""
    untried: dict[str, str] = msgspec.field(default_factory=dict)
    """By the part of a trial: why it could not be tried."""
