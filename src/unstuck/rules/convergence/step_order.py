"""O04: zero_grad, backward and step in an order that loses the gradients, or one of them missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from unstuck.events import Backward, Event, LossCall, OptimizerSeen, OptimizerStep, Place, ZeroGrad
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.convergence import _order_in_run as measured, _step_order_fixes as step_order_fixes
from unstuck.rules.convergence._order_in_run import EARLY, MISSING, ORDER, PILED, WIPED
from unstuck.rules.shared import loop_order as order
from unstuck.source.edits.edit import fix_with
from unstuck.source.trace import Happened, Path, events_in, loops_in, reads_all
from unstuck.source.values import Instance, Value

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

UNMADE = "zero_grad leaves every .grad empty, and step skips parameters without one, so no weight ever changes."
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
                yield _finding(message, UNMADE, fix, event.place)


def _wiped_in_source(script: Script, ways: Sequence[Path]) -> Iterator[Finding]:
    for place, text in order.always(ways, _wiping).items():
        early = text == EARLY
        message = "step() runs before backward()." if early else "zero_grad() runs between backward() and step()."
        fix = "Move step() behind backward()." if early else "Move zero_grad() in front of backward() or behind step()."
        edits = step_order_fixes.reordered(script, ways, place, early=early)
        yield _finding(message, text, fix_with(f"{fix} {ORDER}", edits, "safe"), place)


def _wiping(path: Path) -> order.Opinion:
    """A clearing between a backward and the step that should have used it condemns; a step that works acquits."""
    opinion = order.Opinion()
    items, turn_of = order.gradient_events(path), order.iteration_numbers(path)
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
        yield _finding(message, MISSING, fix_with(fix, edits, "unsafe"), backward.place)


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
            yield _finding(message, PILED, fix_with(fix, edits, "unsafe"), step.event.place)


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
    for found in measured.troubles(record):
        yield _finding(found.message, found.cause, found.fix, found.place, found.related, found.evidence)


def _finding(
    message: str,
    cause: str,
    fix: str | Fix,
    place: Place | None,
    related: Sequence[Place | None] = (),
    evidence: Sequence[Evidence] = (),
) -> Finding:
    subject = Subject("loop", f"training loop at {place}")
    return rule.finding(message, cause=cause, fix=fix, subject=subject, place=place, related=related, evidence=evidence)


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
