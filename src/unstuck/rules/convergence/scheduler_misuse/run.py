"""O08 in a run: when schedulers were stepped, how often, and whether that fits what they were built for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unstuck.events import Evaluated, OptimizerStep, Place, RunStatus, SchedulerSeen, SchedulerStep, StepSkipped
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction, trend_of
from unstuck.rules.convergence.scheduler_misuse import (
    AFTER_OPTIMIZER,
    NEEDS_METRIC,
    ON_PURPOSE,
    PASS_METRIC,
    SKIPPED,
    WAITS_FOR_WORSE,
    WANT_LESS,
    WANT_MORE,
    Misuse,
    rule,
)
from unstuck.rules.shared import dynamics
from unstuck.rules.shared.accumulation import micro_windows, step_windows, usual
from unstuck.rules.shared.crashes import crash_of
from unstuck.rules.shared.data import trained_on
from unstuck.rules.shared.schedules import NOTHING, Schedule, dead_from, finished, rates_in_use, schedules

ENDS = {"LinearLR": "total_iters"}
"""Arguments that may be the length of a schedule, or only that of a warm-up."""
LENGTHS = {"CosineAnnealingLR": "T_max", "OneCycleLR": "total_steps", "PolynomialLR": "total_iters"}
"""Arguments that say how many steps a schedule is built for."""
FEWEST = 10
SAME_METRIC = 2
"""Evaluations whose result a scheduler was given."""
AGAIN = 1.5
"""A schedule stepped this many times its length was built for another unit."""
FELT = 0.95
"""A decay built for epochs lowers the learning rate at least to this share over the epochs of the run."""
OUTLASTS = "Each step() advances a schedule by one, so the run ended long before the schedule did."


class Pace(NamedTuple):
    """The numbers of a run with one optimizer that has ended."""

    schedule: Schedule
    calls: int
    """How often the scheduler was stepped."""
    steps: int
    """How often the optimizer was, since the scheduler was built."""
    micro: int
    """Backward passes for each step."""
    first: float
    last: float
    """The first and the last learning rate."""

    def finding(self, variant: Misuse, message: str, cause: str, fix: str) -> Finding:
        """A finding at the last line that steps the scheduler."""
        lines, seen = self.schedule.lines, self.schedule.seen
        evidence = [
            Evidence("scheduler.step() calls", self.calls),
            Evidence("optimizer steps", self.steps),
            Evidence("first and last learning rate", f"{self.first:.3g} and {self.last:.3g}"),
        ]
        # Of two lines that step it, the other one belongs to the finding too.
        others = lines[:1] if variant is Misuse.STEPPED_TWICE else []
        return _finding(variant, message, cause, fix, lines[-1], [*others, seen.place], evidence)


def find(record: Record) -> Iterator[Finding]:
    """Schedulers that were stepped out of order, at the wrong pace or never."""
    yield from _crashed(record)
    known = schedules(record)
    for schedule in known:
        yield from _before_optimizer(record, schedule)
        yield from _never_stepped(record, schedule, known)
        yield from _wrong_direction(record, schedule)
        pace = _pace(record, schedule)
        if pace is None:
            continue
        # What a schedule had left to do is known only for a run that finished.
        mismatch = _mismatch(pace) if finished(record) else None
        found = _twice(record, pace) or mismatch or _decayed_in_an_epoch(record, pace)
        if found is not None:
            yield found


def _finding(
    variant: Misuse,
    message: str,
    cause: str,
    fix: str,
    place: Place | None,
    related: Sequence[Place | None] = (),
    evidence: Sequence[Evidence] = (),
    severity: Severity = Severity.WARNING,
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "scheduler", place),
        place=place,
        related=related,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ERROR else Confidence.LIKELY,
        variant=variant,
    )


def _crashed(record: Record) -> Iterator[Finding]:
    over = crash_of(record, TorchError.PAST_LAST_STEP)
    if over is not None:
        numbers = [int(number) for number in re.findall(r"\d+", over.message)]
        length = f" of {numbers[-1]} steps" if numbers else ""
        yield _finding(
            Misuse.PAST_THE_END,
            f"OneCycleLR was stepped past the end{length} it was built for.",
            "It is built for a fixed number of step() calls and raises ValueError after them.",
            "Build it with total_steps = the number of optimizer steps in the whole run, and step it after each.",
            over.place,
            [seen.place for seen in record.of(SchedulerSeen) if seen.kind == "OneCycleLR"],
            [Evidence("optimizer steps before it", over.step)],
            Severity.ERROR,
        )
    blind = crash_of(record, TorchError.NO_METRIC)
    if blind is not None:
        message = "ReduceLROnPlateau.step() was called without the metric it watches."
        yield _finding(Misuse.WITHOUT_METRIC, message, NEEDS_METRIC, PASS_METRIC, blind.place, severity=Severity.ERROR)


def _wrong_direction(record: Record, schedule: Schedule) -> Iterator[Finding]:
    """It is given the share of right answers, or the loss, that the evaluation just before came to."""
    wants_more = schedule.seen.wants_more
    given = [(step.step, step.metric, step) for step in schedule.steps if step.metric is not None]
    if wants_more is None or len(given) < SAME_METRIC:
        return
    latest = {evaluated.step: evaluated for evaluated in record.of(Evaluated)}
    found = [(latest[at].accuracy, latest[at].value, metric) for at, metric, _ in given if at in latest]
    shares = [share for share, _, metric in found if share is not None and _is_same(metric, share)]
    losses = [loss for _, loss, metric in found if loss is not None and _is_same(metric, loss)]
    matching = losses if wants_more else shares
    if len(matching) < SAME_METRIC or len(matching) < len(found):
        return
    rates = [step.rates[0] for _, _, step in given if step.rates]
    lowered = f", and the learning rate went from {rates[0]:.3g} to {rates[-1]:.3g}" if rates[-1] < rates[0] else ""
    what, wanted = ("loss", "rise") if wants_more else ("share of right answers", "fall")
    yield _finding(
        Misuse.WRONG_DIRECTION,
        f"ReduceLROnPlateau is given the {what} of the evaluation and waits for it to {wanted}: it went from "
        f"{matching[0]:.3g} to {matching[-1]:.3g}{lowered}.",
        WAITS_FOR_WORSE,
        WANT_LESS if wants_more else WANT_MORE,
        schedule.lines[-1],
        [schedule.seen.place],
        [Evidence("values it was given", ", ".join(f"{metric:.3g}" for _, metric, _ in given[:6]))],
        Severity.ERROR,
    )


def _is_same(metric: float, measured: float) -> bool:
    """As a share or in percent."""
    return any(math.isclose(metric, scale * measured, rel_tol=1e-3) for scale in (1, 100) if measured)


def _before_optimizer(record: Record, schedule: Schedule) -> Iterator[Finding]:
    """Stepped once before any optimizer step, and then repeatedly from the same line."""
    steps = schedule.steps
    if len(steps) < 2 or any(step.told for step in steps) or not any(schedule.seen.rates):
        return
    first, second = steps[:2]
    waited = second.step > first.step and first.place is not None and first.place == second.place
    if not waited or first.count != 1 or ON_PURPOSE.search(first.place.function if first.place else ""):
        return
    built, stepped = (
        next(index for index, event in enumerate(record.events) if event is wanted) for wanted in (schedule.seen, first)
    )
    if any(isinstance(event, OptimizerStep | StepSkipped) for event in record.events[built:stepped]):
        return
    update = next((step for step in record.of(OptimizerStep)), None)
    used = rates_in_use(record).get(schedule.seen.optimizer)
    yield _finding(
        Misuse.BEFORE_OPTIMIZER,
        f"{schedule.name} was stepped before the optimizer's first step.",
        SKIPPED,
        AFTER_OPTIMIZER,
        first.place,
        [update.place if update is not None else None],
        [
            Evidence("learning rate it was built with", schedule.seen.rates[0]),
            Evidence("learning rate of the first step", used[0][1][0] if used else steps[0].rates[0]),
        ],
    )


def _never_stepped(record: Record, schedule: Schedule, known: Sequence[Schedule]) -> Iterator[Finding]:
    """Built for an optimizer that then took many steps, while no scheduler of it was stepped."""
    seen, ended = schedule.seen, schedule.ended
    others = [other for other in known if other.seen.optimizer == seen.optimizer and other.steps]
    trained = any(step.optimizer == seen.optimizer for step in record.of(OptimizerStep))
    if ended is None or ended.count or ended.steps < FEWEST or others or not trained or not finished(record):
        return
    yield _finding(
        Misuse.NEVER_STEPPED,
        f"{schedule.name} was never stepped in a run of {ended.steps} optimizer steps.",
        "Only step() changes the learning rate, so it stayed at its first value.",
        "Call scheduler.step() after optimizer.step(), once per batch or once per epoch, as it was built for.",
        seen.place,
        evidence=[Evidence("scheduler.step() calls", 0), Evidence("optimizer steps", ended.steps)],
    )


def _pace(record: Record, schedule: Schedule) -> Pace | None:
    """The numbers, if the run finished or was stopped, and stepped one optimizer."""
    ended, used = schedule.ended, rates_in_use(record)
    stopped = record.ended is not None and record.ended.status == RunStatus.STOPPED
    if ended is None or not ended.count or len(used) != 1 or not (stopped or finished(record)):
        return None
    if any(step.told for step in schedule.steps):
        return None
    rates = [now[0] for step, now in next(iter(used.values())) if step >= schedule.seen.step]
    if ended.steps < FEWEST or not rates:
        return None
    micro = max(usual([len(window.backwards) for window in micro_windows(record)]), 1)
    return Pace(schedule, ended.count, ended.steps, micro, rates[0], rates[-1])


def _twice(record: Record, pace: Pace) -> Finding | None:
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
    message = f"{pace.schedule.name} is stepped twice for every optimizer step, on two lines."
    cause = "The schedule runs twice as fast as the training."
    return pace.finding(Misuse.STEPPED_TWICE, message, cause, "Remove one of the two calls.")


def _mismatch(pace: Pace) -> Finding | None:
    """The length a schedule was built with, against how often it was stepped."""
    seen = pace.schedule.seen
    name = LENGTHS.get(seen.kind) or ENDS.get(seen.kind, "")
    length = int(seen.numbers.get(name, 0))
    if not length:
        return None
    built = f"{seen.kind}({name}={length})"
    if pace.micro > 1 and _about(pace.calls, pace.micro * pace.steps) and _about(length, pace.steps):
        return pace.finding(
            Misuse.PER_MICRO_BATCH,
            f"{built} is as long as the run has optimizer steps ({pace.steps}), but was stepped {pace.calls} times: "
            f"once for each of {pace.micro} backward passes.",
            f"It runs {pace.micro} times too fast and is over long before training ends.",
            "Call scheduler.step() only where the optimizer is stepped.",
        )
    if seen.kind in ENDS:
        return None
    if pace.calls >= AGAIN * length:
        climbs = seen.kind == "CosineAnnealingLR"
        after = "the learning rate climbed again" if climbs else "the learning rate stayed at its end"
        return pace.finding(
            Misuse.PER_BATCH,
            f"{built} was stepped {pace.calls} times: after {length} of them {after}.",
            "Each step() advances a schedule by one; it was built for epochs and stepped for batches, or is too short.",
            f"Step it once per epoch, or build it with {name} = the number of step() calls in the whole run.",
        )
    if pace.calls <= pace.steps / 2 and length >= 2 * pace.calls and _about(length, pace.steps):
        return pace.finding(
            Misuse.PER_EPOCH,
            f"{built} is as long as the run has optimizer steps ({pace.steps}), but was stepped {pace.calls} times.",
            OUTLASTS,
            "Call scheduler.step() after every optimizer.step(), or build it with the number of epochs.",
        )
    if pace.micro > 1 and _about(pace.calls, pace.steps) and _about(length, pace.micro * pace.steps):
        return pace.finding(
            Misuse.BUILT_FOR_MICRO_BATCHES,
            f"{built} is as long as the run has backward passes, but was stepped once for every {pace.micro} of them: "
            f"{pace.calls} times.",
            OUTLASTS,
            f"Build it with {length} // {pace.micro} steps, the number of optimizer steps.",
        )
    return None


def _decayed_in_an_epoch(record: Record, pace: Pace) -> Finding | None:
    """A decay built for epochs and stepped for every batch lowers the learning rate to nothing in the first epoch."""
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
    if taken > batches / pace.micro or taken > pace.steps / 2:
        return None
    if trend_of([loss for step, loss in dynamics.losses(record, optimizer) if step >= dead]).word == Direction.FALLING:
        return None
    built = ", ".join(f"{name}={seen.numbers[name]:g}" for name in ("step_size", "gamma") if name in seen.numbers)
    return pace.finding(
        Misuse.PER_BATCH,
        f"{seen.kind}({built}) is stepped for every batch: after {taken} of the {batches} batches of the first epoch "
        f"the learning rate was below {NOTHING:.1%} of its start.",
        "Each step() multiplies the learning rate again. Built for epochs and stepped for batches, the decay of the "
        "whole run is over within the first epoch, and the weights stop changing.",
        "Call scheduler.step() once per epoch, after the loop over batches.",
    )


def _decayed(seen: SchedulerSeen, count: int) -> float:
    """The share of the learning rate that is left after `count` steps of a decay; 1 for other schedules."""
    every = {"ExponentialLR": 1.0, "StepLR": seen.numbers.get("step_size", 0.0)}.get(seen.kind, 0.0)
    return float(seen.numbers.get("gamma", 1.0) ** (count // every)) if every else 1.0


def _about(one: float, other: float) -> bool:
    """Are they equal, up to what is left over at the ends of epochs?"""
    return abs(one - other) <= 0.15 * max(one, other)
