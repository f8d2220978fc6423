"""Whether a loss is one that training should bring down: where the model has a hand in its own targets, it need not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Event, Forward, LossCall, OptimizerStep
from unstuck.record.trend import Trend

if TYPE_CHECKING:
    from unstuck.record import Record

MOVING = "moving"
"""The word for a loss that rises or spikes while its goal moves."""
FEWEST = 5
EACH_SIDE = 3
"""So many values on either side of 0 are those of a loss that is no distance from a goal."""


def told(trend: Trend, record: Record) -> Trend:
    """The trend of a run's loss, in words that are no blame where its goal moves."""
    blames = trend.word in ("rising", "spiking") and may_rise(record)
    return msgspec.structs.replace(trend, word=MOVING) if blames else trend


def may_rise(record: Record) -> bool:
    """Do most steps rest on what a network said without gradients, as in Q-learning, or is the loss a policy's?"""
    values = [value for _, value in record.losses]
    below, above = sum(value < 0 for value in values), sum(value > 0 for value in values)
    if min(below, above) >= EACH_SIDE:
        return True
    windows = list(_windows(record))
    return len(windows) >= FEWEST and 2 * sum(map(_sets_its_goal, windows)) > len(windows)


def _windows(record: Record) -> Iterator[list[Event]]:
    """What happened before each recorded step that followed a backward."""
    pending: list[Event] = []
    for event in record.of(Forward, LossCall, Backward, OptimizerStep):
        if pending and pending[0].step != event.step:
            pending = []
        if not isinstance(event, OptimizerStep):
            pending.append(event)
        elif any(isinstance(before, Backward) for before in pending):
            yield pending
            pending = []


def _sets_its_goal(window: list[Event]) -> bool:
    """Was a network asked without gradients, and not to compute a loss of its own, as an evaluation does?"""
    asked = any(isinstance(event, Forward) and not event.grad_enabled for event in window)
    evaluated = any(isinstance(event, LossCall) and event.output_requires_grad is False for event in window)
    return asked and not evaluated
