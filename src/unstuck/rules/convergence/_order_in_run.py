"""O04 in the record of a run: steps without gradients, gradients without a step, gradients that nobody clears."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import (
    Backward,
    Event,
    Forward,
    NonFinite,
    OptimizerSeen,
    OptimizerStep,
    StepSkipped,
    ZeroGrad,
)
from unstuck.findings import Evidence
from unstuck.record.trend import trend_of
from unstuck.rules.shared import loop_order as order
from unstuck.rules.shared.trouble import Trouble

if TYPE_CHECKING:
    from unstuck.record import Record

ORDER = "The order is: zero_grad, forward, loss, backward, step."
WIPED = "zero_grad clears the gradients that backward has just computed, so step has nothing to apply."
EARLY = "step runs before backward, on gradients that were just cleared, so it has nothing to apply."
MISSING = "backward computes gradients, but without step() no weight ever changes."
PILED = "backward adds to what is already in .grad, so every step applies the sum of all batches since the start."
TAKEN = "Something between backward and step takes the gradients away, so step has nothing to apply."
STEADY = 3
THROWN_AWAY = 10
"""Where others step, gradients cleared unused so often are no start in which one part waits for the others."""


def troubles(record: Record) -> Iterator[Trouble]:
    """Everything a run shows of gradients that are lost or added up."""
    events = [event for event in record.events if isinstance(event, (*order.GRADIENT_EVENTS, Forward))]
    steps = [event for event in events if isinstance(event, OptimizerStep)]
    if not steps:
        yield from _no_step(record, events)
        return
    for optimizer in dict.fromkeys(step.optimizer for step in steps):
        own = [step for step in steps if step.optimizer == optimizer and not step.inside_closure]
        yield from _empty_steps(events, own)
    # Of gradients that are no numbers any more nobody can tell whether they were carried over.
    broken = min((event.step for event in record.of(NonFinite)), default=math.inf)
    yield from _piled_up(record, [event for event in events if event.step < broken])
    yield from _left_out(record, events)


def _empty_steps(events: Sequence[Event], own: Sequence[OptimizerStep]) -> Iterator[Trouble]:
    empty = [step for step in own if step.with_grad == 0 or step.grad_norm == 0.0]
    wiped = [pair for step in empty if (pair := _wiped_by(events, step))]
    if len(wiped) < STEADY or len(wiped) < len(own) / 2:
        yield from _taken_away(events, own, empty)
        return
    zero, early = wiped[-1]
    step = own[-1]
    counts = [Evidence("steps watched", len(own)), Evidence("steps without any gradient", len(wiped))]
    lost = Evidence("gradients cleared before each step", zero.cleared or 0)
    message = f"{len(wiped)} of {len(own)} steps of {step.optimizer} found no gradient: "
    message += "step() runs before backward()." if early else "zero_grad() had just cleared it."
    fix = "Move step() behind backward()." if early else "Move zero_grad() in front of backward() or behind step()."
    guilty, other = (step.place, zero.place) if early else (zero.place, step.place)
    yield Trouble(message, EARLY if early else WIPED, f"{fix} {ORDER}", guilty, [other], [*counts, lost])


def _wiped_by(events: Sequence[Event], step: OptimizerStep) -> tuple[ZeroGrad, bool] | None:
    """The zero_grad that emptied a step, and whether the step came before its backward."""
    zero: ZeroGrad | None = None
    forward_between = False
    for event in reversed(events[: _position(events, step)]):
        if isinstance(event, ZeroGrad) and zero is None and order.same_optimizer(event, step):
            zero = event
        elif isinstance(event, Forward) and zero is None:
            forward_between = True
        elif isinstance(event, Backward):
            return (zero, forward_between) if zero is not None else None
        elif isinstance(event, OptimizerStep) and event.optimizer == step.optimizer:
            return None
    return None


def _position(events: Sequence[Event], wanted: Event) -> int:
    return next(index for index, event in enumerate(events) if event is wanted)


def _taken_away(
    events: Sequence[Event], own: Sequence[OptimizerStep], empty: Sequence[OptimizerStep]
) -> Iterator[Trouble]:
    """Right after backward the gradients of the only optimizer were measured, and step found none of them."""
    alone = len({event.optimizer for event in events if isinstance(event, OptimizerStep)}) == 1
    before = [(step, events[_position(events, step) - 1]) for step in empty if step.with_grad == 0]
    lost = [(step, made) for step, made in before if isinstance(made, Backward) and made.step == step.step]
    measured = [(made, made.grad_norm) for _, made in lost if made.grad_norm]
    if not alone or len(measured) < STEADY or len(lost) < len(own) / 2:
        return
    last, (made, norm) = own[-1], measured[-1]
    yield Trouble(
        f"{len(lost)} of {len(own)} steps of {last.optimizer} found no gradient, although backward() had just made "
        "some.",
        TAKEN,
        f"Clear gradients in front of backward() or behind step(), not in between. {ORDER}",
        last.place,
        [made.place],
        [
            Evidence("steps watched", len(own)),
            Evidence("steps without any gradient", len(lost)),
            Evidence("norm of the gradients right after backward()", norm),
        ],
    )


def _piled_up(record: Record, events: Sequence[Event]) -> Iterator[Trouble]:
    """By optimizer: each backward that its steps rest on met what an earlier step had used, and nobody clears."""
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
        carrying = [made.carried or 0.0 for made in own]
        cleared = any(_clears(record, event, optimizer, alone=len(steps) == 1) for event in clearings)
        if len(own) >= STEADY and min(carrying) > 0.0 and not cleared:
            yield _never_cleared(steps[optimizer], own, carrying[-1])


def _clears(record: Record, event: ZeroGrad, optimizer: str, *, alone: bool) -> bool:
    """May a clearing have reached the gradients of this optimizer? True unless known not to."""
    if alone:
        return True
    if event.optimizer is not None:
        return event.optimizer == optimizer
    setup = record.setup()
    held = {fact.key for seen in setup.optimizers if seen.optimizer == optimizer for fact in seen.parameters}
    cleared = {fact.key for seen in setup.models if seen.model == event.model for fact in seen.parameters}
    return not cleared or bool(held & cleared)


def _never_cleared(steps: Sequence[OptimizerStep], backwards: Sequence[Backward], left: float) -> Trouble:
    step = steps[-1]
    return Trouble(
        f"In {len(steps)} watched steps of {step.optimizer} its gradients were never cleared.",
        PILED,
        f"Call zero_grad() before each backward(). {ORDER}",
        step.place,
        [backwards[-1].place],
        [
            Evidence("steps watched", len(steps)),
            Evidence("zero_grad() calls", 0),
            Evidence("gradient norm left over at the last backward", left),
        ],
    )


def _no_step(record: Record, events: Sequence[Event]) -> Iterator[Trouble]:
    backwards = [event for event in events if isinstance(event, Backward) and not event.failed]
    thrown_away = [event for event in events if isinstance(event, ZeroGrad) and event.cleared]
    optimizers = list(record.of(OptimizerSeen))
    skipped = any(isinstance(event, StepSkipped) for event in events)
    learns = trend_of([loss for _, loss in record.losses]).falls
    enough = len(thrown_away) >= STEADY or _finished(record)
    if not optimizers or skipped or learns or len(backwards) < STEADY or not enough:
        return
    optimizer = optimizers[-1]
    evidence = [Evidence("backward() calls watched", len(backwards)), Evidence("step() calls", 0)]
    message = f"In {len(backwards)} watched calls of backward(), {optimizer.kind}.step() never ran: no weight changed."
    fix = f"Call the optimizer's step() after backward(). {ORDER}"
    yield Trouble(message, MISSING, fix, backwards[0].place, [optimizer.place], evidence)


def _left_out(record: Record, events: Sequence[Event]) -> Iterator[Trouble]:
    """Of several optimizers one that clears gradients again and again and never steps, nor another one for it."""
    stepping = {event.optimizer for event in events if isinstance(event, OptimizerStep | StepSkipped)}
    setup = record.setup()
    moved = {fact.key for seen in setup.optimizers if seen.optimizer in stepping for fact in seen.parameters}
    for seen in setup.optimizers if _finished(record) else ():
        held = {fact.key for fact in seen.parameters if fact.trainable}
        own = [event for event in events if isinstance(event, ZeroGrad) and event.optimizer == seen.optimizer]
        lost = [event for event in own if event.cleared]
        if seen.optimizer in stepping or held & moved or len(lost) < THROWN_AWAY:
            continue
        after = events[_position(events, lost[0]) :]
        backward = next((event for event in after if isinstance(event, Backward)), None)
        yield Trouble(
            f"{seen.optimizer} cleared its gradients {len(lost)} times and never stepped: none of its "
            f"{len(held)} parameters changed.",
            MISSING,
            f"Call step() of this optimizer after its backward(). {ORDER}",
            backward.place if backward is not None else lost[-1].place,
            [seen.place, lost[-1].place],
            [Evidence("times that gradients were cleared unused", len(lost)), Evidence("step() calls", 0)],
        )


def _finished(record: Record) -> bool:
    return record.ended is not None and record.ended.status == "finished"
