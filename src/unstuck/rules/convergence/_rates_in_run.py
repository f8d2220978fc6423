"""O23 as a run shows it: rates of zero, schedules without effect, and get_lr() that says something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import OptimizerSeen, OptimizerStep, Place, RateAsked
from unstuck.findings import Evidence, Severity
from unstuck.rules.shared.schedules import Rates, Schedule, rates_in_use, schedules

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST = 5
LONG = 10
ZERO = "Every update is multiplied by the rate, so step() changes nothing, and a schedule of 0 is 0."
SCHEDULED = "A scheduler multiplies the rate by a factor from the moment it is built, and here that factor is 0."
WARM_UP = (
    "Let the factor begin above 0 and rise with every step: a warm-up is min(1, (step + 1) / warmup), with / and not "
    "//, and scheduler.step() is called after every optimizer.step()."
)
OTHER = "A scheduler changes the rates of the optimizer it was built with, and of no other."
OVERWRITTEN = "Something sets the rate again after the scheduler has, so the schedule has no effect."


class Trouble(NamedTuple):
    """What a finding needs; the rule that owns it makes it one."""

    message: str
    cause: str
    fix: str
    subject: tuple[str, str]
    place: Place | None
    related: Sequence[Place | None] = ()
    evidence: Sequence[Evidence] = ()
    severity: Severity = Severity.ERROR


def troubles(record: Record) -> Iterator[Trouble]:
    """Everything a run shows of rates that are not what they seem."""
    used = rates_in_use(record)
    places = {seen.optimizer: seen.place for seen in record.setup().optimizers}
    for optimizer, rates in used.items():
        yield from _zeroed(record, optimizer, rates) or _zero(optimizer, rates, places.get(optimizer))
    yield from _without_effect(record, used)
    yield from _asked(record)


def _zeroed(record: Record, optimizer: str, rates: Rates) -> list[Trouble]:
    """The optimizer was built with a rate, and its scheduler multiplies that by 0."""
    built = next((seen for seen in record.of(OptimizerSeen) if seen.optimizer == optimizer), None)
    driving = [schedule for schedule in schedules(record) if schedule.seen.optimizer == optimizer]
    given = max(built.rates, default=0.0) if built is not None else 0.0
    if len(rates) < FEWEST or len(driving) != 1 or not given or any(max(now, default=0.0) for _, now in rates):
        return []
    schedule = driving[0]
    return [
        Trouble(
            f"{schedule.name} keeps the learning rate of {optimizer} at 0 in all of {len(rates)} watched steps; it was "
            f"built with {given:.3g}.",
            SCHEDULED,
            WARM_UP,
            ("optimizer", optimizer),
            schedule.seen.place,
            [built.place if built is not None else None, *schedule.lines],
            [Evidence("steps watched", len(rates)), Evidence("learning rate", 0.0)],
        )
    ]


def _zero(optimizer: str, rates: Rates, place: Place | None) -> Iterator[Trouble]:
    highest = [max(group) for group in zip(*(now for _, now in rates), strict=False)]
    if len(rates) < FEWEST or not highest or all(highest):
        return
    watched = Evidence("steps watched", len(rates))
    if not any(highest):
        yield Trouble(
            f"{optimizer} has a learning rate of 0 in all of {len(rates)} watched steps.",
            ZERO,
            "Give it a positive learning rate.",
            ("optimizer", optimizer),
            place,
            evidence=[watched, Evidence("learning rate", 0.0)],
        )
    elif len(rates) >= LONG:
        idle = [index for index, rate in enumerate(highest) if not rate]
        names = ", ".join(map(str, idle))
        yield Trouble(
            f"Parameter group {names} of {optimizer} has a learning rate of 0 in all of {len(rates)} watched steps.",
            "Its gradients are computed and nothing comes of them.",
            "Give it a rate, or freeze its parameters with requires_grad_(False), which saves the work.",
            ("optimizer", optimizer),
            place,
            evidence=[watched, Evidence("groups", len(highest))],
            severity=Severity.ADVICE,
        )


def _without_effect(record: Record, used: dict[str, Rates]) -> Iterator[Trouble]:
    """A schedule moved, and the rates at the steps did not."""
    last = max((step for rates in used.values() for step, _ in rates), default=0)
    flat = {name: {now for _, now in rates} for name, rates in used.items() if len(rates) >= LONG}
    if not flat or any(len(values) > 1 for values in flat.values()):
        return
    stepping = list(dict.fromkeys(step.optimizer for step in record.of(OptimizerStep)))
    in_use = next(iter(next(iter(flat.values()))))[0]
    for schedule in schedules(record) if stepping else ():
        moved = {step.rates for step in schedule.steps if step.step < last}
        if len(moved) >= 3:
            yield _idle(schedule, sorted(now[0] for now in moved if now), in_use, stepping)


def _idle(schedule: Schedule, rates: Sequence[float], in_use: float, stepping: Sequence[str]) -> Trouble:
    seen = schedule.seen
    elsewhere = seen.optimizer not in stepping
    evidence = [
        Evidence("rates the schedule went through", f"{rates[-1]:.3g} to {rates[0]:.3g}"),
        Evidence("rate in use at every step", in_use),
    ]
    message = f"The rate of {stepping[0]} stayed the same, although {schedule.name} was stepped."
    if elsewhere:
        message = f"{schedule.name} drives {seen.optimizer}, which never steps; the one that does is {stepping[0]}."
    return Trouble(
        message,
        OTHER if elsewhere else OVERWRITTEN,
        "Build the scheduler with the optimizer that is stepped." if elsewhere else "Leave the rate to the scheduler.",
        ("scheduler", seen.scheduler),
        seen.place,
        schedule.lines,
        evidence,
        Severity.ERROR if elsewhere else Severity.WARNING,
    )


def _asked(record: Record) -> Iterator[Trouble]:
    by_place: dict[object, list[RateAsked]] = {}
    for event in record.of(RateAsked):
        by_place.setdefault(event.place, []).append(event)
    for events in by_place.values():
        event = events[0]
        if event.answer and event.rates:
            yield Trouble(
                f"get_lr() of {event.kind} said {event.answer[0]:.3g} while the rate in use was {event.rates[0]:.3g}.",
                f"{event.kind} derives the next rate from the present one there, so outside step() it is another one.",
                "Call get_last_lr() instead.",
                ("call", f"get_lr at {event.place}"),
                event.place,
                severity=Severity.WARNING,
            )
