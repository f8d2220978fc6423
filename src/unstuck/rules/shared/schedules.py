"""Learning rates as a run used them, and the schedulers that set them."""

from __future__ import annotations

import math
from typing import NamedTuple

from unstuck.events import Gauges, OptimizerStep, Place, RunStatus, ScheduleEnded, SchedulerSeen, SchedulerStep
from unstuck.record import Record
from unstuck.rules.shared.dynamics import remembered
from unstuck.rules.shared.loop_order import places

Rates = list[tuple[int, tuple[float, ...]]]
NOTHING = 0.002
"""As a share of its peak: a rate below this changes nothing. The usual three drops by ten end just below."""


class Schedule(NamedTuple):
    """One scheduler: how it was built, its recorded steps, and how far it got."""

    seen: SchedulerSeen
    steps: list[SchedulerStep]
    ended: ScheduleEnded | None

    @property
    def lines(self) -> list[Place]:
        """The lines that stepped it."""
        return places(self.steps)

    @property
    def name(self) -> str:
        """Its class."""
        return self.seen.kind


@remembered
def schedules(record: Record) -> list[Schedule]:
    """Every scheduler of a run that no other one drives, in the order they were built."""
    steps: dict[str, list[SchedulerStep]] = {}
    for step in record.of(SchedulerStep):
        steps.setdefault(step.scheduler, []).append(step)
    ended = {event.scheduler: event for event in record.of(ScheduleEnded)}
    found = [
        Schedule(seen, steps.get(seen.scheduler, []), ended.get(seen.scheduler)) for seen in record.of(SchedulerSeen)
    ]
    return [schedule for schedule in found if schedule.steps or schedule.ended is not None]


def finished(record: Record) -> bool:
    """Did the run finish? One that was stopped says nothing about lengths."""
    return record.ended is not None and record.ended.status == RunStatus.FINISHED and record.ended.exit_code == 0


@remembered
def rates_in_use(record: Record) -> dict[str, Rates]:
    """By optimizer, the rates of its groups at every recorded step, as long as they are finite."""
    stepping = {step.step: step.optimizer for step in record.of(OptimizerStep)}
    found: dict[str, Rates] = {}
    for gauge in record.of(Gauges):
        optimizer = gauge.optimizer or stepping.get(gauge.step, "")
        if gauge.rates and optimizer and all(map(math.isfinite, gauge.rates)):
            found.setdefault(optimizer, []).append((gauge.step, gauge.rates))
    return found


def dead_from(rates: Rates) -> int | None:
    """The step from which on every rate stays near 0; None if the last one does not."""
    peak = max(max(now) for _, now in rates)
    dead: int | None = None
    for step, now in reversed(rates):
        if max(now) > NOTHING * peak:
            break
        dead = step
    return dead if peak > 0 else None
