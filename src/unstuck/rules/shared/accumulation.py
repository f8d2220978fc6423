"""Accumulation as a run shows it: which backwards each step added up, and what happened in between.

Where several optimizers take turns, whose gradients a backward makes is not on record: most rules leave that alone.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import (
    Backward,
    Clip,
    Event,
    Forward,
    LossCall,
    NonFinite,
    OptimizerStep,
    SchedulerStep,
    StepSkipped,
    Unscale,
    ZeroGrad,
)
from unstuck.rules.shared.dynamics import remembered

if TYPE_CHECKING:
    from unstuck.record import Record

STEADY = 3
"""What happened in fewer windows than this may be chance."""
MOST = 64
"""A window with this many backwards may have had more that are not on record."""
SEEN = (Backward, ZeroGrad, Unscale, Clip, LossCall, Forward, SchedulerStep, OptimizerStep, StepSkipped)


class StepWindow(NamedTuple):
    """What a recorded window held, in order; it ends with `step`."""

    events: tuple[Event, ...]
    step: OptimizerStep | StepSkipped

    @property
    def backwards(self) -> list[Backward]:
        """The backwards whose gradients the step was given."""
        return [event for event in self.events if isinstance(event, Backward) and not event.failed]

    def between(self) -> Iterator[tuple[Backward, Backward, list[Event]]]:
        """Each backward with the next one and what happened in between."""
        spots = [index for index, event in enumerate(self.events) if isinstance(event, Backward) and not event.failed]
        for first, second in itertools.pairwise(spots):
            one, other = self.events[first], self.events[second]
            assert isinstance(one, Backward)
            assert isinstance(other, Backward)
            yield one, other, list(self.events[first + 1 : second])

    def behind(self) -> list[Event]:
        """What happened between the last backward and the step."""
        last = max((i for i, event in enumerate(self.events) if isinstance(event, Backward)), default=-1)
        return list(self.events[last + 1 :])

    @property
    def kept(self) -> float | None:
        """The norm that reached the clipping or the step, as a share of the one after the last backward.

        None if it was not measured, or if a scaler divided in between.
        """
        made = self.backwards[-1].grad_norm if self.backwards else None
        behind = self.behind()
        if not made or self.backwards[-1].scaled or any(isinstance(event, ZeroGrad) for event in behind):
            return None
        clip = next((event for event in behind if isinstance(event, Clip)), None)
        used = clip.norm if clip is not None else getattr(self.step, "grad_norm", None)
        return used / made if used is not None else None


@remembered
def step_windows(record: Record, *, alone: bool = True) -> list[StepWindow]:
    """The recorded windows of a run; none if several optimizers step and `alone` is asked for."""
    if alone and len({step.optimizer for step in record.of(OptimizerStep)}) != 1:
        return []
    found: list[StepWindow] = []
    pending: list[Event] = []
    for event in record.events:
        if not isinstance(event, SEEN):
            continue
        if pending and pending[0].step != event.step:
            pending = []
        if isinstance(event, OptimizerStep | StepSkipped):
            found.append(StepWindow(tuple(pending), event))
            pending = []
        else:
            pending.append(event)
    return [window for window in found if not getattr(window.step, "inside_closure", False)]


@remembered
def micro_windows(record: Record) -> list[StepWindow]:
    """Windows in which one and the same line ran backward several times, as long as their numbers are numbers."""
    broken = min((event.step for event in record.of(NonFinite)), default=math.inf)
    return [window for window in step_windows(record) if is_micro(window) and window.step.step < broken]


def is_micro(window: StepWindow) -> bool:
    """Are its backwards several, and all of one line?"""
    backwards = window.backwards
    lines = {backward.place and backward.place.key for backward in backwards}
    return 2 <= len(backwards) < MOST and len(lines) == 1 and None not in lines


def usual(counts: Sequence[int]) -> int:
    """The number that occurs most often; 0 of nothing."""
    return Counter(counts).most_common(1)[0][0] if counts else 0


def close(one: float, other: float, tolerance: float = 0.01) -> bool:
    """Are two numbers the same but for rounding?"""
    return abs(one - other) <= tolerance * max(abs(one), abs(other))
