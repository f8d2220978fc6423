"""O08 as a run shows it: when schedulers were stepped, how often, and how that fits what they were built for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import Event, OptimizerStep, SchedulerSeen, SchedulerStep, StepSkipped
from unstuck.findings import Evidence, Severity
from unstuck.lazy import pattern
from unstuck.record.trend import trend_of
from unstuck.rules.shared import dynamics
from unstuck.rules.shared.accumulation import micro_windows, step_windows, usual
from unstuck.rules.shared.crashes import crash_of
from unstuck.rules.shared.data import trained_on
from unstuck.rules.shared.schedules import NOTHING, Schedule, dead_from, finished, rates_in_use, schedules
from unstuck.rules.shared.trouble import Trouble

if TYPE_CHECKING:
    from unstuck.record import Record

ON_PURPOSE = pattern(r"find|range_test|plot|simulat|sweep", re.I)
ENDS = {"LinearLR": "total_iters"}
"""What may be the length of a schedule, or only of its beginning, as in a warm-up."""
LENGTHS = {"CosineAnnealingLR": "T_max", "OneCycleLR": "total_steps", "PolynomialLR": "total_iters"}
"""What tells how many steps a schedule is made for."""
FEWEST = 10
AGAIN = 1.5
"""Stepped this many times as often as it is long, a schedule was made for another unit."""
FELT = 0.95
"""A decay made for epochs lowers the rate at least this far in the epochs of the run."""
SKIPPED = "The first learning rate of the schedule is skipped, and every later one comes a step too early."
UNMOVED = "Only step() changes the learning rate, so it stayed where it started."
TOO_LONG = "Each step() moves a schedule on by one, whatever happened in between, so the run ended long before it."


class Pace(NamedTuple):
    """The numbers of a finished run that had one optimizer."""

    schedule: Schedule
    calls: int
    """How often the scheduler was stepped."""
    steps: int
    """How often the optimizer was, since the scheduler was built."""
    micro: int
    """Backward passes for each step."""
    first: float
    last: float
    """The learning rate, at first and at last."""

    @property
    def evidence(self) -> list[Evidence]:
        return [
            Evidence("scheduler.step() calls", self.calls),
            Evidence("optimizer steps", self.steps),
            Evidence("learning rate at first and at last", f"{self.first:.3g} and {self.last:.3g}"),
        ]


def troubles(record: Record) -> Iterator[Trouble]:
    """Everything a run shows of schedulers that were stepped out of order, at the wrong pace or never."""
    yield from _crashed(record)
    known = schedules(record)
    for schedule in known:
        yield from _early(record, schedule)
        yield from _never(record, schedule, known)
        pace = _pace(record, schedule)
        if pace is None:
            continue
        # What a schedule has left to do can only be told of a run that came to its end.
        mismatch = _mismatch(pace) if finished(record) else None
        trouble = _twice(record, pace) or mismatch or _gone_in_a_pass(record, pace)
        if trouble is not None:
            yield trouble


def _crashed(record: Record) -> Iterator[Trouble]:
    over = crash_of(record, "The specified number of total steps is")
    if over is not None:
        numbers = [int(number) for number in re.findall(r"\d+", over.message)]
        length = f" of {numbers[-1]} steps" if numbers else ""
        yield Trouble(
            f"OneCycleLR was stepped beyond the end{length} it was built for.",
            "It is made for a fixed number of steps, counted as step() is called, and raises ValueError beyond it.",
            "Build it with total_steps = the number of optimizer steps of the whole run, and step it behind each.",
            over.place,
            [seen.place for seen in record.of(SchedulerSeen) if seen.kind == "OneCycleLR"],
            [Evidence("optimizer steps before it", over.step)],
            Severity.ERROR,
        )
    blind = crash_of(
        record, "ReduceLROnPlateau.step() missing", "step() missing 1 required positional argument: 'metrics'"
    )
    if blind is not None:
        yield Trouble(
            "ReduceLROnPlateau.step() was called without the metric it watches.",
            "It lowers the rate when a metric stops improving and raises TypeError without one.",
            "Pass the metric: step(validation_loss).",
            blind.place,
            severity=Severity.ERROR,
        )


def _early(record: Record, schedule: Schedule) -> Iterator[Trouble]:
    """Stepped once before any optimizer step, and then from the same line again and again."""
    steps = schedule.steps
    if len(steps) < 2 or any(step.told for step in steps) or not any(schedule.seen.rates):
        return
    first, second = steps[:2]
    waited = second.step > first.step and first.place is not None and first.place == second.place
    if not waited or first.count != 1 or ON_PURPOSE.search(first.place.function if first.place else ""):
        return
    if any(isinstance(event, OptimizerStep | StepSkipped) for event in _between(record, schedule.seen, first)):
        return
    updates = next((step for step in record.of(OptimizerStep)), None)
    yield Trouble(
        f"{schedule.name} was stepped before the optimizer had taken its first step.",
        SKIPPED,
        "Call scheduler.step() behind optimizer.step().",
        first.place,
        [updates.place if updates is not None else None],
        [
            Evidence("learning rate it was built with", schedule.seen.rates[0]),
            Evidence("rate of the first step", _first_rate(record, schedule)),
        ],
    )


def _between(record: Record, seen: SchedulerSeen, first: SchedulerStep) -> list[Event]:
    events = record.events
    start = next(index for index, event in enumerate(events) if event is seen)
    end = next(index for index, event in enumerate(events) if event is first)
    return list(events[start:end])


def _first_rate(record: Record, schedule: Schedule) -> float:
    used = rates_in_use(record).get(schedule.seen.optimizer)
    return used[0][1][0] if used else schedule.steps[0].rates[0]


def _never(record: Record, schedule: Schedule, known: Sequence[Schedule]) -> Iterator[Trouble]:
    """Built for an optimizer that then took many steps, while no scheduler of it was stepped."""
    seen, ended = schedule.seen, schedule.ended
    others = [other for other in known if other.seen.optimizer == seen.optimizer and other.steps]
    trained = any(step.optimizer == seen.optimizer for step in record.of(OptimizerStep))
    if ended is None or ended.count or ended.steps < FEWEST or others or not trained or not finished(record):
        return
    yield Trouble(
        f"{schedule.name} was never stepped in a run of {ended.steps} optimizer steps.",
        UNMOVED,
        "Call scheduler.step() after optimizer.step(), once per batch or per epoch, as it was built for.",
        seen.place,
        evidence=[Evidence("scheduler.step() calls", 0), Evidence("optimizer steps", ended.steps)],
    )


def _pace(record: Record, schedule: Schedule) -> Pace | None:
    """The numbers, if the run came to its end or was stopped, and one optimizer was stepped in it."""
    ended, used = schedule.ended, rates_in_use(record)
    stopped = record.ended is not None and record.ended.status == "stopped"
    if ended is None or not ended.count or len(used) != 1 or not (stopped or finished(record)):
        return None
    if any(step.told for step in schedule.steps):
        return None
    rates = [now[0] for step, now in next(iter(used.values())) if step >= schedule.seen.step]
    if ended.steps < FEWEST or not rates:
        return None
    micro = max(usual([len(window.backwards) for window in micro_windows(record)]), 1)
    return Pace(schedule, ended.count, ended.steps, micro, rates[0], rates[-1])


def _twice(record: Record, pace: Pace) -> Trouble | None:
    """Two lines step it, each once for every optimizer step."""
    lines = pace.schedule.lines
    if len(lines) != 2 or not _about(pace.calls, 2 * pace.steps):
        return None
    places = [
        {event.place for event in window.events if isinstance(event, SchedulerStep)} for window in step_windows(record)
    ]
    both = sum(set(lines) <= found for found in places)
    if both < 3 or both < len(places) / 2:
        return None
    return Trouble(
        f"{pace.schedule.name} is stepped twice for every optimizer step, on two lines.",
        "The schedule runs twice as fast as the training.",
        "Keep one of the two calls.",
        lines[1],
        [lines[0], pace.schedule.seen.place],
        pace.evidence,
    )


def _mismatch(pace: Pace) -> Trouble | None:
    """The length a schedule was built with, against how often it was stepped."""
    seen = pace.schedule.seen
    name = LENGTHS.get(seen.kind) or ENDS.get(seen.kind, "")
    length = int(seen.numbers.get(name, 0))
    if not length:
        return None
    said = f"{seen.kind}({name}={length})"
    if pace.micro > 1 and _about(pace.calls, pace.micro * pace.steps) and _about(length, pace.steps):
        return _trouble(
            pace,
            f"{said} is as long as the run has optimizer steps ({pace.steps}), but was stepped {pace.calls} times: "
            f"for each of {pace.micro} backward passes.",
            f"It runs {pace.micro} times too fast and is over long before the training is.",
            "Call scheduler.step() only where the optimizer is stepped.",
        )
    if seen.kind in ENDS:
        return None
    if pace.calls >= AGAIN * length:
        climbs = seen.kind == "CosineAnnealingLR"
        after = "the rate climbed up again" if climbs else "the rate stayed at its end"
        return _trouble(
            pace,
            f"{said} was stepped {pace.calls} times: after {length} of them {after}.",
            "Each step() moves a schedule on by one; it was built for epochs and stepped for batches, or is too short.",
            f"Step it once per epoch, or build it with {name} = the number of step() calls of the whole run.",
        )
    return _barely_moved(pace, said, length)


def _gone_in_a_pass(record: Record, pace: Pace) -> Trouble | None:
    """Stepped for every batch, a decay made for epochs brings the rate to nothing before the first one is over."""
    seen, loaders = pace.schedule.seen, trained_on(record)
    epochs = loaders[0].passes if len(loaders) == 1 else 0
    if epochs < 2 or _decayed(seen, epochs) > FELT:
        return None
    optimizer, rates = next(iter(rates_in_use(record).items()))
    dead, batches = dead_from(rates), pace.steps * pace.micro // epochs
    per_batch = _about(pace.calls, pace.steps) or _about(pace.calls, pace.micro * pace.steps)
    if dead is None or not per_batch:
        return None
    taken = dead - seen.step
    if taken > batches / pace.micro or taken > pace.steps / 2 or _still_learns(record, optimizer, dead):
        return None
    made = ", ".join(f"{name}={seen.numbers[name]:g}" for name in ("step_size", "gamma") if name in seen.numbers)
    return _trouble(
        pace,
        f"{seen.kind}({made}) is stepped for every batch: after {taken} of the {batches} batches of the first epoch "
        f"the learning rate was below {NOTHING:.1%} of where it began.",
        "Each step() multiplies the rate once more. Made for epochs and stepped for batches, the decay of the whole "
        "run is over within the first epoch, and from then on the weights stay as they are.",
        "Call scheduler.step() once per epoch, behind the loop over batches.",
    )


def _decayed(seen: SchedulerSeen, count: int) -> float:
    """What a decay by a factor makes of the rate in so many steps; 1 for schedules of other kinds."""
    every = {"ExponentialLR": 1.0, "StepLR": seen.numbers.get("step_size", 0.0)}.get(seen.kind, 0.0)
    return float(seen.numbers.get("gamma", 1.0) ** (count // every)) if every else 1.0


def _still_learns(record: Record, optimizer: str, dead: int) -> bool:
    return trend_of([loss for step, loss in dynamics.losses(record, optimizer) if step >= dead]).word == "falling"


def _barely_moved(pace: Pace, said: str, length: int) -> Trouble | None:
    if pace.calls <= pace.steps / 2 and length >= 2 * pace.calls and _about(length, pace.steps):
        return _trouble(
            pace,
            f"{said} is as long as the run has optimizer steps ({pace.steps}), but was stepped {pace.calls} times.",
            TOO_LONG,
            "Call scheduler.step() behind every optimizer.step(), or build it with the number of epochs.",
        )
    if pace.micro > 1 and _about(pace.calls, pace.steps) and _about(length, pace.micro * pace.steps):
        return _trouble(
            pace,
            f"{said} is as long as the run has backward passes, but was stepped once for every {pace.micro} of them: "
            f"{pace.calls} times.",
            TOO_LONG,
            f"Build it with {length} // {pace.micro} steps, the number of optimizer steps.",
        )
    return None


def _trouble(pace: Pace, message: str, cause: str, fix: str) -> Trouble:
    lines = pace.schedule.lines
    return Trouble(message, cause, fix, lines[-1], [pace.schedule.seen.place], pace.evidence)


def _about(one: float, other: float) -> bool:
    """The same, give or take what is left over at the ends of epochs."""
    return abs(one - other) <= 0.15 * max(one, other)
