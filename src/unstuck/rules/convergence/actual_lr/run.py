"""O23 in a run: learning rates of 0, schedules without effect, and get_lr() that returns another value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import OptimizerSeen, OptimizerStep, Place, RateAsked
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.actual_lr import USE_LAST_LR, USE_POSITIVE, ZERO, Rate, derives, rule
from unstuck.rules.shared.schedules import Rates, Schedule, rates_in_use, schedules

FEWEST = 5
LONG = 10


def find(record: Record) -> Iterator[Finding]:
    """Every variant."""
    used = rates_in_use(record)
    places = {seen.optimizer: seen.place for seen in record.setup().optimizers}
    for optimizer, rates in used.items():
        zeroed = _zeroed_by_scheduler(record, optimizer, rates)
        yield from (zeroed,) if zeroed else _zero(optimizer, rates, places.get(optimizer))
    yield from _without_effect(record, used)
    yield from _get_lr(record)


def _zeroed_by_scheduler(record: Record, optimizer: str, rates: Rates) -> Finding | None:
    """The optimizer was built with a learning rate, and its scheduler multiplies that by 0."""
    built = next((seen for seen in record.of(OptimizerSeen) if seen.optimizer == optimizer), None)
    driving = [schedule for schedule in schedules(record) if schedule.seen.optimizer == optimizer]
    given = max(built.rates, default=0.0) if built is not None else 0.0
    if len(rates) < FEWEST or len(driving) != 1 or not given or any(max(now, default=0.0) for _, now in rates):
        return None
    schedule = driving[0]
    return rule.finding(
        f"{schedule.name} holds the learning rate of {optimizer} at 0 in all {len(rates)} watched steps; it was built "
        f"with {given:.3g}.",
        cause="A scheduler multiplies the learning rate by a factor from the moment it is built, and that factor is 0.",
        fix="Let the factor start above 0 and rise with every step: min(1, (step + 1) / warmup), with / and not //. "
        "Call scheduler.step() after every optimizer.step().",
        subject=Subject("optimizer", optimizer),
        place=schedule.seen.place,
        related=[built.place if built is not None else None, *schedule.lines],
        evidence=[Evidence("steps watched", len(rates)), Evidence("learning rate", 0.0)],
        variant=Rate.ZEROED_BY_SCHEDULER,
    )


def _zero(optimizer: str, rates: Rates, place: Place | None) -> Iterator[Finding]:
    highest = [max(group) for group in zip(*(now for _, now in rates), strict=False)]
    if len(rates) < FEWEST or not highest or all(highest):
        return
    watched = Evidence("steps watched", len(rates))
    if not any(highest):
        yield rule.finding(
            f"{optimizer} has a learning rate of 0 in all {len(rates)} watched steps.",
            cause=ZERO,
            fix=USE_POSITIVE,
            subject=Subject("optimizer", optimizer),
            place=place,
            evidence=[watched, Evidence("learning rate", 0.0)],
            variant=Rate.ZERO,
        )
    elif len(rates) >= LONG:
        names = ", ".join(str(index) for index, rate in enumerate(highest) if not rate)
        yield rule.finding(
            f"Parameter group {names} of {optimizer} has a learning rate of 0 in all {len(rates)} watched steps.",
            cause="Its gradients are computed but never used.",
            fix="Give it a learning rate, or freeze its parameters with requires_grad_(False), which saves the work.",
            subject=Subject("optimizer", optimizer),
            place=place,
            evidence=[watched, Evidence("groups", len(highest))],
            severity=Severity.ADVICE,
            variant=Rate.GROUP_AT_ZERO,
        )


def _without_effect(record: Record, used: dict[str, Rates]) -> Iterator[Finding]:
    """A schedule changed, and the learning rate at the steps did not."""
    last = max((step for rates in used.values() for step, _ in rates), default=0)
    flat = {name: {now for _, now in rates} for name, rates in used.items() if len(rates) >= LONG}
    if not flat or any(len(values) > 1 for values in flat.values()):
        return
    stepping = list(dict.fromkeys(step.optimizer for step in record.of(OptimizerStep)))
    in_use = next(iter(next(iter(flat.values()))))[0]
    for schedule in schedules(record) if stepping else ():
        changed = {step.rates for step in schedule.steps if step.step < last}
        if len(changed) >= 3:
            yield _idle(schedule, sorted(now[0] for now in changed if now), in_use, stepping)


def _idle(schedule: Schedule, rates: Sequence[float], in_use: float, stepping: Sequence[str]) -> Finding:
    seen = schedule.seen
    other = seen.optimizer not in stepping
    message = f"The learning rate of {stepping[0]} never changed, although {schedule.name} was stepped."
    if other:
        message = f"{schedule.name} schedules {seen.optimizer}, which never steps; {stepping[0]} steps instead."
    return rule.finding(
        message,
        cause="A scheduler changes only the learning rate of the optimizer it was built with."
        if other
        else "Something sets the learning rate again after the scheduler has, so the schedule has no effect.",
        fix="Build the scheduler with the optimizer that steps." if other else "Let only the scheduler set it.",
        subject=Subject("scheduler", seen.scheduler),
        place=seen.place,
        related=schedule.lines,
        evidence=[
            Evidence("learning rates of the schedule", f"{rates[-1]:.3g} to {rates[0]:.3g}"),
            Evidence("learning rate in use at every step", in_use),
        ],
        severity=Severity.ERROR if other else Severity.WARNING,
        variant=Rate.OTHER_OPTIMIZER if other else Rate.OVERWRITTEN,
    )


def _get_lr(record: Record) -> Iterator[Finding]:
    first: dict[Place | None, RateAsked] = {}
    for event in record.of(RateAsked):
        first.setdefault(event.place, event)
    for event in first.values():
        if event.answer and event.rates:
            yield rule.finding(
                f"{event.kind}.get_lr() returned {event.answer[0]:.3g} while the learning rate in use was "
                f"{event.rates[0]:.3g}.",
                cause=derives(event.kind),
                fix=USE_LAST_LR,
                subject=Subject.at("call", "get_lr", event.place),
                place=event.place,
                severity=Severity.WARNING,
                variant=Rate.GET_LR,
            )
