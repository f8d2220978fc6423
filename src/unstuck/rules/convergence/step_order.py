"""O04: zero_grad, backward and step in an order that loses the gradients, or one of them missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from unstuck.events import (
    Backward,
    Event,
    Forward,
    LossCall,
    NonFinite,
    OptimizerSeen,
    OptimizerStep,
    Place,
    StepSkipped,
    ZeroGrad,
)
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject, Witness
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules import order
from unstuck.rules.convergence import _step_order_fixes as step_order_fixes
from unstuck.source.edit import fix_with
from unstuck.source.trace import Happened, Path, events_in, loops_in, reads_all
from unstuck.source.values import Instance, Value
from unstuck.trend import trend_of

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="O04",
    name="step-order",
    title="zero_grad, backward and step out of order, or one of them missing",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "M14", "O01", "O03", "O07", "O22", "O25", "O26", "R08"),
    needs=(Backward,),
)

ORDER = "The order is: zero_grad, forward, loss, backward, step."
WIPED = "zero_grad clears the gradients that backward has just computed, so step has nothing to apply."
EARLY = "step runs before backward, on gradients that were just cleared, so it has nothing to apply."
MISSING = "backward computes gradients, but without step() no weight ever changes."
PILED = "backward adds to what is already in .grad, so every step applies the sum of all batches since the start."
UNMADE = "zero_grad leaves every .grad empty, and step skips parameters without one, so no weight ever changes."
STEADY = 3
GRADIENTS_MADE = pattern(r"backward|autograd|\.grad\b|\bgrad\(|functorch|torch\.func")
CLEARING = pattern(r"zero_grad(?!\s*(#.*)?$)|\.grad\b")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Wrong on every path through a training loop that we can read completely."""
    for ways in order.readable_loops(script):
        yield from _wiped_in_source(script, ways)
        yield from _missing_step_in_source(script, ways)
        yield from _never_zeroed_in_source(script, ways)
    if not script.facts.backwards and not GRADIENTS_MADE.search(script.text):
        yield from _missing_backward_in_source(script)


def _missing_backward_in_source(script: Script) -> Iterator[Finding]:
    """Nothing in the file makes gradients, and a loop that was read completely computes a loss, clears and steps."""
    for loop in loops_in(script.facts.trace):
        items = list(events_in(loop.body, nested_loops=False))
        kinds = {type(item.event) for item in items}
        steps = [item for item in items if isinstance(item.event, OptimizerStep) and isinstance(item.subject, Instance)]
        if steps and kinds >= {LossCall, ZeroGrad} and OptimizerSeen not in kinds and reads_all(loop.body):
            event = steps[0].event
            assert isinstance(event, OptimizerStep)
            if not event.inside_closure and id(steps[0].subject) not in script.facts.escaped:
                message = f"backward() is never called: {event.optimizer}.step() has no gradients to apply."
                fix = Fix(f"Call backward() on the loss before {event.optimizer}.step(). {ORDER}")
                yield _finding(Witness.SOURCE, message, UNMADE, fix, event.place)


def _wiped_in_source(script: Script, ways: Sequence[Path]) -> Iterator[Finding]:
    for place, text in order.always(ways, _wiping).items():
        early = text == EARLY
        message = "step() runs before backward()." if early else "zero_grad() runs between backward() and step()."
        fix = "Move step() behind backward()." if early else "Move zero_grad() in front of backward() or behind step()."
        edits = step_order_fixes.reordered(script, ways, place, early=early)
        yield _finding(Witness.SOURCE, message, text, fix_with(f"{fix} {ORDER}", edits, "safe"), place)


def _wiping(path: Path) -> order.Opinion:
    """A clearing between a backward and the step that should have used it condemns; a step that works acquits."""
    opinion = order.Opinion()
    items, turn_of = order.gradient_events(path), order.turn_numbers(path)
    for position, step in enumerate(items):
        used = _gradients_of(items, position)
        if used is None:
            continue
        backward, zero = used
        if zero is None:
            clearings = [item for item in items[:backward] if isinstance(item.event, ZeroGrad)]
            helpful = [item.event for item in clearings if order.concerns(item, step)]
            opinion.innocent |= set(order.places([step.event, *helpful]))
        elif turn_of[backward] == turn_of[zero] == turn_of[position]:
            opinion.guilty.update(dict.fromkeys(order.places([items[zero].event]), WIPED))
        else:
            opinion.guilty.update(dict.fromkeys(order.places([step.event]), EARLY))
    return opinion


def _gradients_of(items: Sequence[Happened], position: int) -> tuple[int, int | None] | None:
    """Where the gradients of a step come from, and the zero_grad after it that wiped them; None if neither is known."""
    step = items[position]
    if not isinstance(step.event, OptimizerStep) or step.event.inside_closure:
        return None
    zero: int | None = None
    for index in range(position - 1, -1, -1):
        item = items[index]
        if isinstance(item.event, Backward):
            return index, zero
        if isinstance(item.event, ZeroGrad) and zero is None and order.concerns(item, step):
            zero = index
        elif isinstance(item.event, OptimizerStep) and order.concerns(item, step):
            return None
    return None


def _missing_step_in_source(script: Script, ways: Sequence[Path]) -> Iterator[Finding]:
    items = list({id(item): item for way in ways for item in order.gradient_events(way)}.values())
    waiting = _never_stepped(script, items)
    backward = _backward_after(items, waiting) if waiting else None
    if backward is not None:
        name = waiting if isinstance(waiting, str) else waiting.label or waiting.last
        message = f"{name}.step() is never called: the loop runs backward() and no weight changes."
        fix = f"Call {name}.step() after backward(). {ORDER}"
        edits = step_order_fixes.step_added(script, items, waiting, backward.place)
        yield _finding(Witness.SOURCE, message, MISSING, fix_with(fix, edits, "unsafe"), backward.place)


def _backward_after(items: Sequence[Happened], waiting: Instance | str) -> Event | None:
    """The backward that follows the optimizer's own zero_grad, or else the first."""
    zeroed = [index for index, item in enumerate(items) if item.subject is waiting and isinstance(item.event, ZeroGrad)]
    start = zeroed[0] if zeroed else 0
    backwards = [item.event for item in (*items[start:], *items) if isinstance(item.event, Backward)]
    return backwards[0] if backwards else None


def _never_stepped(script: Script, items: Sequence[Happened]) -> Instance | str:
    """An optimizer that this loop belongs to and that nothing in the script steps."""
    stepped, known = _all_stepped(script)
    if not known:
        return ""
    steps_here = any(isinstance(item.event, OptimizerStep) for item in items)
    zeroed = {id(item.subject) for item in items if isinstance(item.event, ZeroGrad)}
    trained = {id(module) for module in order.modules_behind(_losses(items))}
    for made in script.facts.optimizers:
        # Where another one steps, the loss may lie behind both: only its own zero_grad shows that this one counts.
        belongs = id(made.optimizer) in zeroed or (not steps_here and order.owners(made.parameters) & trained)
        if belongs and id(made.optimizer) not in stepped | script.facts.escaped:
            return made.optimizer
    names = [item.event.optimizer for item in items if isinstance(item.event, ZeroGrad) and item.event.optimizer]
    alone = bool(names) and not stepped and not script.facts.optimizers and ".step(" not in script.text
    return names[0] if alone and names[0] else ""


@lru_cache(maxsize=1)
def _all_stepped(script: Script) -> tuple[frozenset[int], bool]:
    """The optimizers that are stepped anywhere, and whether these are all that step; found once for all loops."""
    steps = [item.subject for item in events_in(script.facts.trace) if isinstance(item.event, OptimizerStep)]
    # Parameters taken out of the groups are updated by hand somewhere.
    by_hand = any(word in script.text for word in ('["params"]', "['params']"))
    return frozenset(map(id, steps)), not by_hand and all(isinstance(subject, Instance) for subject in steps)


def _losses(items: Sequence[Happened]) -> list[Value]:
    return [item.value for item in items if isinstance(item.event, Backward) and item.value is not None]


def _never_zeroed_in_source(script: Script, ways: Sequence[Path]) -> Iterator[Finding]:
    every = [item for way in ways for item in order.gradient_events(way)]
    zeros = [item for item in every if isinstance(item.event, ZeroGrad)]
    known = all(
        isinstance(item.subject, Instance) for item in every if isinstance(item.event, ZeroGrad | OptimizerStep)
    )
    # An optimizer that came from elsewhere may be cleared elsewhere too: any mention of clearing is an alibi.
    if not known and (zeros or any(word in script.text for word in ("zero_grad", ".grad", "reset_grad"))):
        return
    if _clears_elsewhere(script, every):
        return
    for step in _repeated_steps(ways):
        if not any(order.concerns(zero, step) for zero in zeros) and isinstance(step.event, OptimizerStep):
            label = step.event.optimizer
            message = f"{label} steps in every turn of the loop and its gradients are never cleared."
            fix = f"Call {label}.zero_grad() before each backward(). {ORDER}"
            alone = len({item.event.optimizer for item in every if isinstance(item.event, OptimizerStep)}) == 1
            edits = step_order_fixes.clearing_added(script, step.event) if alone else None
            yield _finding(Witness.SOURCE, message, PILED, fix_with(fix, edits, "unsafe"), step.event.place)


def _clears_elsewhere(script: Script, items: Sequence[Happened]) -> bool:
    """Is there a clearing that this loop may reach by ways we did not follow: a generator, a hook, a callback?"""
    unread, aside = _clearings(script)
    here = {place.function for place in order.places(item.event for item in items)}
    return unread or not aside <= here


@lru_cache(maxsize=1)
def _clearings(script: Script) -> tuple[bool, frozenset[str]]:
    """Is there a line that clears and was not read, and which functions clear outside of training loops?"""
    everything = list(events_in(script.facts.trace))
    seen = {place.line for place in order.places(item.event for item in everything)}
    unread = any(CLEARING.search(line) for number, line in enumerate(script.lines, 1) if number not in seen)
    in_loops = {id(item) for loop in script.training_loops for item in events_in(loop.body)}
    aside = [item.event for item in everything if isinstance(item.event, ZeroGrad) and id(item) not in in_loops]
    return unread, frozenset(place.function for place in order.places(aside) if place.function)


def _repeated_steps(ways: Sequence[Path]) -> list[Happened]:
    """Steps, one for each optimizer, that some path takes at least twice."""
    found: dict[object, Happened] = {}
    for way in ways:
        steps = [item for item in order.gradient_events(way) if isinstance(item.event, OptimizerStep)]
        for step in steps:
            if sum(other is step for other in steps) > 1:
                found.setdefault(id(step.subject) if step.subject is not None else step.event.place, step)
    return list(found.values())


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same mistakes, measured: steps without gradients, no steps, gradients carried over."""
    events = [event for event in record.events if isinstance(event, (*order.GRADIENT_EVENTS, Forward))]
    steps = [event for event in events if isinstance(event, OptimizerStep)]
    if steps:
        yield from _empty_steps(events, steps)
        # Of gradients that are no numbers any more nobody can tell whether they were carried over.
        broken = min((event.step for event in record.of(NonFinite)), default=math.inf)
        yield from _piled_up([event for event in events if event.step < broken], steps)
    else:
        yield from _no_step(record, events)


def _empty_steps(events: Sequence[Event], steps: Sequence[OptimizerStep]) -> Iterator[Finding]:
    for optimizer in dict.fromkeys(step.optimizer for step in steps):
        own = [step for step in steps if step.optimizer == optimizer and not step.inside_closure]
        wiped = [pair for step in own if _is_empty(step) and (pair := _wiped_by(events, step))]
        if len(wiped) < STEADY or len(wiped) < len(own) / 2:
            continue
        zero, early = wiped[-1]
        step = own[-1]
        counts = [Evidence("steps watched", len(own)), Evidence("steps without any gradient", len(wiped))]
        lost = Evidence("gradients cleared before each step", zero.cleared or 0)
        message = f"{len(wiped)} of {len(own)} steps of {optimizer} found no gradient: "
        message += "step() runs before backward()." if early else "zero_grad() had just cleared it."
        fix = "Move step() behind backward()." if early else "Move zero_grad() in front of backward() or behind step()."
        guilty, other = (step.place, zero.place) if early else (zero.place, step.place)
        yield _finding(
            Witness.RUN, message, EARLY if early else WIPED, f"{fix} {ORDER}", guilty, [other], [*counts, lost]
        )


def _is_empty(step: OptimizerStep) -> bool:
    return step.with_grad == 0 or step.grad_norm == 0.0


def _wiped_by(events: Sequence[Event], step: OptimizerStep) -> tuple[ZeroGrad, bool] | None:
    """The zero_grad that emptied a step, and whether the step came before its backward."""
    zero: ZeroGrad | None = None
    forward_between = False
    position = next(index for index, event in enumerate(events) if event is step)
    for event in reversed(events[:position]):
        if isinstance(event, ZeroGrad) and zero is None and order.same_optimizer(event, step):
            zero = event
        elif isinstance(event, Forward) and zero is None:
            forward_between = True
        elif isinstance(event, Backward):
            return (zero, forward_between) if zero is not None else None
        elif isinstance(event, OptimizerStep) and event.optimizer == step.optimizer:
            return None
    return None


def _piled_up(events: Sequence[Event], steps: Sequence[OptimizerStep]) -> Iterator[Finding]:
    backwards = [event for event in events if isinstance(event, Backward) and event.carried is not None]
    carrying = [event.carried or 0.0 for event in backwards]
    if len(backwards) < STEADY or min(carrying) <= 0.0 or any(isinstance(event, ZeroGrad) for event in events):
        return
    step = steps[-1]
    evidence = [
        Evidence("steps watched", len(steps)),
        Evidence("zero_grad() calls", 0),
        Evidence("gradient norm left over at the last backward", carrying[-1]),
    ]
    message = f"In {len(steps)} watched steps of {step.optimizer} its gradients were never cleared."
    fix = f"Call zero_grad() before each backward(). {ORDER}"
    yield _finding(Witness.RUN, message, PILED, fix, step.place, [backwards[-1].place], evidence)


def _no_step(record: Record, events: Sequence[Event]) -> Iterator[Finding]:
    backwards = [event for event in events if isinstance(event, Backward) and not event.failed]
    thrown_away = [event for event in events if isinstance(event, ZeroGrad) and event.cleared]
    optimizers = list(record.of(OptimizerSeen))
    skipped = any(isinstance(event, StepSkipped) for event in events)
    finished = record.ended is not None and record.ended.status == "finished"
    learns = trend_of([loss for _, loss in record.losses]).falls
    if not optimizers or skipped or learns or len(backwards) < STEADY or not (len(thrown_away) >= STEADY or finished):
        return
    optimizer = optimizers[-1]
    evidence = [Evidence("backward() calls watched", len(backwards)), Evidence("step() calls", 0)]
    message = f"In {len(backwards)} watched calls of backward(), {optimizer.kind}.step() never ran: no weight changed."
    fix = f"Call the optimizer's step() after backward(). {ORDER}"
    yield _finding(Witness.RUN, message, MISSING, fix, backwards[0].place, [optimizer.place], evidence)


def _finding(
    witness: Witness,
    message: str,
    cause: str,
    fix: str | Fix,
    place: Place | None,
    related: Sequence[Place | None] = (),
    evidence: Sequence[Evidence] = (),
) -> Finding:
    subject = Subject("loop", f"training loop at {place}")
    return rule.finding(
        witness, message, cause=cause, fix=fix, subject=subject, place=place, related=related, evidence=evidence
    )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """Clear, keep or step, whichever is missing."""
    from unstuck.interventions import ClearGradients, KeepGradients, TakeSteps

    if finding.cause in (WIPED, EARLY):
        yield (KeepGradients(),)
    elif finding.cause == PILED:
        yield (ClearGradients(),)
    elif finding.cause == MISSING:
        yield (TakeSteps(),)
