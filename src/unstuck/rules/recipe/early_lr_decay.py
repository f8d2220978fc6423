"""R07: the schedule decays the learning rate to almost 0 long before the run ends."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Gauges, OptimizerStep, Place, RunStatus
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction, trend_of
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import dynamics
from unstuck.rules.shared.schedules import Rates, Schedule, dead_from, finished, rates_in_use, schedules

rule = Rule(
    code="R07",
    name="early-lr-decay",
    title="the schedule decays the learning rate to almost 0 long before the run ends",
    severity=Severity.WARNING,
    explains=("O07", "O22"),
    needs=(OptimizerStep,),
    logged=(Gauges,),
)

REST = 1 / 3
"""Many schedules end low, but not for a third of the run."""
FEWEST = 20
CAUSE = "Every update is multiplied by the learning rate, so from there on the weights hardly changed."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The learning rates in use, compared with their peak."""
    stopped = record.ended is not None and record.ended.status == RunStatus.STOPPED
    if not finished(record) and not stopped and record.started.watched != "logged":
        return
    for optimizer, rates in rates_in_use(record).items():
        dead = dead_from(rates)
        last = _steps_taken(record, rates)
        makers = [schedule for schedule in schedules(record) if schedule.seen.optimizer == optimizer and schedule.steps]
        if dead is None or last < FEWEST or last - dead < REST * last or _waits_for_a_metric(makers):
            continue
        after = [loss for step, loss in dynamics.losses(record, optimizer) if step >= dead]
        if trend_of(after).word != Direction.FALLING:
            yield _finding(record, optimizer, rates, dead, makers, after)


def _steps_taken(record: Record, rates: Rates) -> int:
    """All steps if there is one optimizer; otherwise up to the last recorded one."""
    alone = len({step.optimizer for step in record.of(OptimizerStep)}) == 1
    last = rates[-1][0] if record.started.watched == "logged" else rates[-1][0] + 1  # a log counts from 1
    return record.ended.steps if alone and record.ended is not None else last


def _waits_for_a_metric(makers: list[Schedule]) -> bool:
    """Was the rate lowered because the loss had stalled? Then it is not the cause."""
    return any(maker.name == "ReduceLROnPlateau" for maker in makers)


def _finding(
    record: Record, optimizer: str, rates: Rates, dead: int, makers: list[Schedule], after: list[float]
) -> Finding:
    peak, steps_taken = max(max(now) for _, now in rates), _steps_taken(record, rates)
    at_dead = next(max(now) for step, now in rates if step == dead)
    steps = [step.place for step in record.of(OptimizerStep) if step.optimizer == optimizer]
    place: Place | None = makers[-1].seen.place if makers else next(reversed(steps), None)
    evidence = [
        Evidence("highest learning rate", peak),
        Evidence(f"learning rate from step {dead} on, at most", at_dead),
        Evidence("steps of the run", steps_taken),
    ]
    trend = trend_of(after)
    if trend.first is not None and trend.last is not None:
        evidence.append(Evidence("loss from there to the end", f"{trend.first:.4g} to {trend.last:.4g}"))
    return rule.finding(
        f"After {dead} of {steps_taken} steps the learning rate of {optimizer} was {at_dead:.2g}, from "
        f"{peak:.2g}: the last {1 - dead / steps_taken:.0%} of the run changed almost nothing.",
        cause=CAUSE,
        fix="Make the schedule as long as the run, counted in calls of scheduler.step(), or let it end at a rate "
        "that still learns.",
        subject=Subject("optimizer", optimizer),
        place=place,
        related=[line for maker in makers for line in maker.lines],
        evidence=evidence,
        confidence=Confidence.LIKELY,
    )


rule.remedied_by(with_change("NoSchedule"))
