"""Whether training should bring a loss down: where a model computes its own targets, the loss need not fall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Event, Forward, HandStep, LossCall, OptimizerStep
from unstuck.record.trend import Direction, Trend

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST = 5
EACH_SIDE = 3
"""With this many values on either side of 0 the loss is not a distance from a goal."""

UPWARDS = -0.1
"""The cosine between updates by hand and the negative gradient, below which they go up."""


def with_moving_goal(trend: Trend, record: Record) -> Trend:
    """The trend of a run's loss; a loss that goes up is `MOVING` where its goal moves."""
    goes_up = trend.word in (Direction.RISING, Direction.SPIKING)
    return msgspec.structs.replace(trend, word=Direction.MOVING) if goes_up and may_rise(record) else trend


def is_maximized(record: Record) -> bool:
    """Do updates by hand go up the gradient of something below 0, as a log-likelihood is?"""
    along = sorted(event.along for event in record.of(HandStep) if event.along is not None)
    values = [value for _, value in record.losses]
    climbs = len(along) >= FEWEST and along[len(along) // 2] < UPWARDS
    return climbs and 2 * sum(value < 0 for value in values) > len(values)


def may_rise(record: Record) -> bool:
    """Do most steps use the output of a network without gradients, as in Q-learning, or is the loss a policy's?"""
    values = [value for _, value in record.losses]
    below, above = sum(value < 0 for value in values), sum(value > 0 for value in values)
    if min(below, above) >= EACH_SIDE:
        return True
    windows = list(_windows(record))
    return len(windows) >= FEWEST and 2 * sum(map(_computes_its_goal, windows)) > len(windows)


def _windows(record: Record) -> Iterator[list[Event]]:
    """What happened before each recorded step that followed a backward."""
    pending: list[Event] = []
    for event in record.of(Forward, LossCall, Backward, OptimizerStep, HandStep):
        if pending and pending[0].step != event.step:
            pending = []
        if not isinstance(event, OptimizerStep | HandStep):
            pending.append(event)
        elif any(isinstance(before, Backward) for before in pending):
            yield pending
            pending = []


def _computes_its_goal(window: list[Event]) -> bool:
    """Was a network called without gradients, and not for a loss of its own, as an evaluation does?"""
    asked = any(isinstance(event, Forward) and not event.grad_enabled for event in window)
    evaluated = any(isinstance(event, LossCall) and event.output_requires_grad is False for event in window)
    return asked and not evaluated
