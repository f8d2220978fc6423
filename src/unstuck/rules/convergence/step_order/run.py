"""O04 in a run: steps without gradients, gradients without a step, gradients that are never cleared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import (
    Backward,
    Event,
    Forward,
    NonFinite,
    OptimizerSeen,
    OptimizerStep,
    Place,
    RunStatus,
    StepSkipped,
    ZeroGrad,
)
from unstuck.findings import Evidence, Finding, Subject
from unstuck.record import Record
from unstuck.record.trend import trend_of
from unstuck.rules.convergence.step_order import CAUSES, FIXES, RIGHT_ORDER, Order, rule
from unstuck.rules.shared import loop_order

STEADY = 3
UNUSED = 10
"""If other optimizers step, gradients cleared unused this often are more than a late start of one part."""


def find(record: Record) -> Iterator[Finding]:
    """Gradients that are lost or added up."""
    events = [event for event in record.events if isinstance(event, (*loop_order.GRADIENT_EVENTS, Forward))]
    steps = [event for event in events if isinstance(event, OptimizerStep)]
    if not steps:
        yield from _no_step(record, events)
        return
    for optimizer in dict.fromkeys(step.optimizer for step in steps):
        own = [step for step in steps if step.optimizer == optimizer and not step.inside_closure]
        yield from _empty_steps(events, own)
    # Whether gradients were carried over cannot be measured once they are NaN or infinite.
    broken = min((event.step for event in record.of(NonFinite)), default=math.inf)
    yield from _never_cleared(record, [event for event in events if event.step < broken])
    yield from _left_out(record, events)


def _finding(
    variant: Order, message: str, fix: str, place: Place | None, related: Place | None, evidence: Sequence[Evidence]
) -> Finding:
    return rule.finding(
        message,
        cause=CAUSES[variant],
        fix=fix,
        subject=Subject.at("loop", "training loop", place),
        place=place,
        related=[related],
        evidence=evidence,
        variant=variant,
    )


def _empty_steps(events: Sequence[Event], own: Sequence[OptimizerStep]) -> Iterator[Finding]:
    empty = [step for step in own if step.with_grad == 0 or step.grad_norm == 0.0]
    cleared = [pair for step in empty if (pair := _cleared_by(events, step))]
    if len(cleared) < STEADY or len(cleared) < len(own) / 2:
        yield from _removed(events, own, empty)
        return
    zero, variant = cleared[-1]
    step = own[-1]
    early = variant is Order.STEP_BEFORE_BACKWARD
    reason = "step() runs before backward()." if early else "zero_grad() had just cleared it."
    place, related = (step.place, zero.place) if early else (zero.place, step.place)
    yield _finding(
        variant,
        f"{len(cleared)} of {len(own)} steps of {step.optimizer} found no gradient: {reason}",
        FIXES[variant],
        place,
        related,
        [
            Evidence("steps watched", len(own)),
            Evidence("steps without any gradient", len(cleared)),
            Evidence("gradients cleared before each step", zero.cleared or 0),
        ],
    )


def _cleared_by(events: Sequence[Event], step: OptimizerStep) -> tuple[ZeroGrad, Order] | None:
    """The zero_grad that left a step without gradients, and which of the two is in the wrong place."""
    zero: ZeroGrad | None = None
    variant = Order.CLEARED_TOO_LATE
    for event in reversed(events[: _position(events, step)]):
        if isinstance(event, ZeroGrad) and zero is None and loop_order.same_optimizer(event, step):
            zero = event
        elif isinstance(event, Forward) and zero is None:
            variant = Order.STEP_BEFORE_BACKWARD
        elif isinstance(event, Backward):
            return (zero, variant) if zero is not None else None
        elif isinstance(event, OptimizerStep) and event.optimizer == step.optimizer:
            return None
    return None


def _position(events: Sequence[Event], wanted: Event) -> int:
    return next(index for index, event in enumerate(events) if event is wanted)


def _removed(
    events: Sequence[Event], own: Sequence[OptimizerStep], empty: Sequence[OptimizerStep]
) -> Iterator[Finding]:
    """Right after backward the gradients of the only optimizer were measured, and step found none of them."""
    alone = len({event.optimizer for event in events if isinstance(event, OptimizerStep)}) == 1
    before = [(step, events[_position(events, step) - 1]) for step in empty if step.with_grad == 0]
    lost = [(step, made) for step, made in before if isinstance(made, Backward) and made.step == step.step]
    measured = [(made, made.grad_norm) for _, made in lost if made.grad_norm]
    if not alone or len(measured) < STEADY or len(lost) < len(own) / 2:
        return
    last, (made, norm) = own[-1], measured[-1]
    yield _finding(
        Order.GRADIENTS_REMOVED,
        f"{len(lost)} of {len(own)} steps of {last.optimizer} found no gradient, although backward() had just computed "
        "some.",
        f"Clear gradients before backward() or after step(), not in between. {RIGHT_ORDER}",
        last.place,
        made.place,
        [
            Evidence("steps watched", len(own)),
            Evidence("steps without any gradient", len(lost)),
            Evidence("gradient norm right after backward()", norm),
        ],
    )


def _never_cleared(record: Record, events: Sequence[Event]) -> Iterator[Finding]:
    """For each optimizer: every backward before its steps met gradients that an earlier step had already used."""
    pending: list[Backward] = []
    backwards: dict[str, list[Backward]] = {}
    steps: dict[str, list[OptimizerStep]] = {}
    for event in events:
        if isinstance(event, Backward):
            pending.append(event)
        elif isinstance(event, OptimizerStep):
            backwards.setdefault(event.optimizer, []).extend(made for made in pending if made.carried is not None)
            steps.setdefault(event.optimizer, []).append(event)
            pending = []
    clearings = [event for event in events if isinstance(event, ZeroGrad)]
    for optimizer, own in backwards.items():
        carried = [made.carried or 0.0 for made in own]
        cleared = any(_clears(record, event, optimizer, alone=len(steps) == 1) for event in clearings)
        if len(own) >= STEADY and min(carried) > 0.0 and not cleared:
            taken = steps[optimizer]
            yield _finding(
                Order.NEVER_CLEARED,
                f"The gradients of {optimizer} were never cleared in {len(taken)} watched steps.",
                f"Call zero_grad() before each backward(). {RIGHT_ORDER}",
                taken[-1].place,
                own[-1].place,
                [
                    Evidence("steps watched", len(taken)),
                    Evidence("zero_grad() calls", 0),
                    Evidence("gradient norm left over at the last backward", carried[-1]),
                ],
            )


def _clears(record: Record, event: ZeroGrad, optimizer: str, *, alone: bool) -> bool:
    """Can this zero_grad have reached the gradients of the optimizer? True unless known not to."""
    if alone:
        return True
    if event.optimizer is not None:
        return event.optimizer == optimizer
    setup = record.setup()
    trained = {fact.key for seen in setup.optimizers if seen.optimizer == optimizer for fact in seen.parameters}
    cleared = {fact.key for seen in setup.models if seen.model == event.model for fact in seen.parameters}
    return not cleared or bool(trained & cleared)


def _no_step(record: Record, events: Sequence[Event]) -> Iterator[Finding]:
    backwards = [event for event in events if isinstance(event, Backward) and not event.failed]
    unused = [event for event in events if isinstance(event, ZeroGrad) and event.cleared]
    optimizers = list(record.of(OptimizerSeen))
    skipped = any(isinstance(event, StepSkipped) for event in events)
    learns = trend_of([loss for _, loss in record.losses]).falls
    enough = len(unused) >= STEADY or _finished(record)
    if not optimizers or skipped or learns or len(backwards) < STEADY or not enough:
        return
    optimizer = optimizers[-1]
    yield _finding(
        Order.NO_STEP,
        f"{optimizer.kind}.step() never ran in {len(backwards)} watched calls of backward(): no weight changed.",
        f"Call the optimizer's step() after backward(). {RIGHT_ORDER}",
        backwards[0].place,
        optimizer.place,
        [Evidence("backward() calls watched", len(backwards)), Evidence("step() calls", 0)],
    )


def _left_out(record: Record, events: Sequence[Event]) -> Iterator[Finding]:
    """One of several optimizers keeps clearing gradients and never steps, and no other steps its parameters."""
    stepping = {event.optimizer for event in events if isinstance(event, OptimizerStep | StepSkipped)}
    setup = record.setup()
    moved = {fact.key for seen in setup.optimizers if seen.optimizer in stepping for fact in seen.parameters}
    for seen in setup.optimizers if _finished(record) else ():
        trainable = {fact.key for fact in seen.parameters if fact.trainable}
        own = [event for event in events if isinstance(event, ZeroGrad) and event.optimizer == seen.optimizer]
        lost = [event for event in own if event.cleared]
        if seen.optimizer in stepping or trainable & moved or len(lost) < UNUSED:
            continue
        after = events[_position(events, lost[0]) :]
        backward = next((event for event in after if isinstance(event, Backward)), None)
        place = backward.place if backward is not None else lost[-1].place
        yield rule.finding(
            f"{seen.optimizer} cleared its gradients {len(lost)} times and never stepped: none of its "
            f"{len(trainable)} parameters changed.",
            cause=CAUSES[Order.NO_STEP],
            fix=f"Call step() of this optimizer after its backward(). {RIGHT_ORDER}",
            subject=Subject.at("loop", "training loop", place),
            place=place,
            related=[seen.place, lost[-1].place],
            evidence=[Evidence("times gradients were cleared unused", len(lost)), Evidence("step() calls", 0)],
            variant=Order.NO_STEP,
        )


def _finished(record: Record) -> bool:
    return record.ended is not None and record.ended.status == RunStatus.FINISHED
