"""O04 in the source: the order of zero_grad, backward and step on every path through a training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache

from unstuck.events import Backward, LossCall, OptimizerSeen, OptimizerStep, Place, ZeroGrad
from unstuck.findings import Confidence, Finding, Fix, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.step_order import CAUSES, FIXES, RIGHT_ORDER, Order, fixes, rule
from unstuck.rules.shared import loop_order
from unstuck.rules.shared.not_called import named_only
from unstuck.source import Script
from unstuck.source.edits.edit import fix_with
from unstuck.source.reader.knowledge import is_module
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Ability, Happened, Hidden, Path, events_in, loops_in, reads_all
from unstuck.source.values import Instance, Parameters

COMPUTES_GRADIENTS = pattern(r"backward|autograd|\.grad\b|\bgrad\(|functorch|torch\.func")
NO_STEP_IN = frozenset("zero_grad param_groups state_dict load_state_dict defaults".split())
PLAIN_BASES = frozenset({"object", "Module", "ABC"})
CLEARS = pattern(
    r"zero_grad(?!\s*(#.*)?$)|\bdel\b.*\.grad\b|\.grad(\.data)?(\[[^\]]*\])?\s*([-+*/]?=(?!=)|\.(?!(clamp|clip|add|div)_\()\w+_\()|setattr\(.*grad"
)

GRADIENTS_TAKEN = pattern(r"\.grad(\.data|\.detach\(\))?(\.(clone|cpu|numpy|tolist)\(|\s*[,\]]|[ \t]+for\b)")
"""Gradients that go elsewhere, where they may be applied. Measuring them takes none away."""


def find(script: Script) -> Iterator[Finding]:
    """Every mistake that holds on all paths."""
    loops = [(ways, False) for ways in loop_order.readable_loops(script)]
    functions = [(ways, True) for ways in loop_order.readable_functions(script)]
    # `optimizer.step` without parentheses is another mistake, with a line of its own.
    meant = {node.attr for node in named_only(script)}
    for ways, is_function in (*loops, *functions):
        yield from _lost(script, ways, is_function)
        if "step" not in meant:
            yield from _no_step(script, ways, is_function)
        if "zero_grad" not in meant and (not is_function or _is_method_for_each_batch(script, ways)):
            yield from _never_cleared(script, ways, is_function)
    if "backward" not in meant and not script.facts.backwards and not COMPUTES_GRADIENTS.search(script.text):
        yield from _no_backward(script)


def _finding(variant: Order, message: str, fix: Fix, place: Place | None, *, certain: bool = True) -> Finding:
    return rule.finding(
        message,
        cause=CAUSES[variant],
        fix=fix,
        subject=Subject.at("loop", "training loop", place),
        place=place,
        variant=variant,
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )


def _no_backward(script: Script) -> Iterator[Finding]:
    """Nothing in the file computes gradients, and a loop that was read completely computes a loss, clears and steps."""
    for loop in loops_in(script.facts.trace):
        items = list(events_in(loop.body, nested_loops=False))
        kinds = {type(item.event) for item in items}
        steps = [item for item in items if isinstance(item.event, OptimizerStep) and isinstance(item.subject, Instance)]
        complete = OptimizerSeen not in kinds and reads_all(loop.body, Ability.BACKWARD)
        if steps and kinds >= {LossCall, ZeroGrad} and complete:
            event = steps[0].event
            assert isinstance(event, OptimizerStep)
            if not event.inside_closure and id(steps[0].subject) not in script.facts.escaped:
                message = f"backward() is never called, so {event.optimizer}.step() has no gradients to apply."
                fix = Fix(f"Call backward() on the loss before {event.optimizer}.step(). {RIGHT_ORDER}")
                yield _finding(Order.NO_BACKWARD, message, fix, event.place)


def _is_method_for_each_batch(script: Script, ways: Sequence[Path]) -> bool:
    """Is it a method of a class that keeps its optimizer, so that no caller is meant to clear the gradients?

    A base class from elsewhere may call it and clear them.
    """
    steps = [item for way in ways for item in loop_order.gradient_events(way) if isinstance(item.event, OptimizerStep)]
    places = loop_order.places(item.event for item in steps)
    kept = all(isinstance(item.event, OptimizerStep) and item.event.optimizer.startswith("self.") for item in steps)
    return (
        kept
        and bool(places)
        and all(
            place.path == script.path and not place.function.startswith("test") and _class_of(script, place) is not None
            for place in places
        )
    )


def _class_of(script: Script, place: Place) -> ast.ClassDef | None:
    """The class whose method is at this place, if all of its bases are known not to train."""
    for node in script.tree.body:
        if isinstance(node, ast.ClassDef) and node.lineno <= place.line <= (node.end_lineno or 0):
            return node if all(dotted(base).rpartition(".")[2] in PLAIN_BASES for base in node.bases) else None
    return None


def _lost(script: Script, ways: Sequence[Path], is_function: bool) -> Iterator[Finding]:
    for place, kind in loop_order.always(ways, lambda path: _losing(script, path, is_function)).items():
        early = kind == Order.STEP_BEFORE_BACKWARD
        variant = Order.STEP_BEFORE_BACKWARD if early else Order.CLEARED_TOO_LATE
        edits = fixes.reordered(script, ways, place, step_is_early=early)
        yield _finding(variant, f"{variant.meaning}.", fix_with(FIXES[variant], edits, "safe"), place)


def _losing(script: Script, path: Path, is_function: bool) -> loop_order.Opinion:
    """Guilty: a zero_grad between a backward and the step that should have used it. Innocent: a step that works.

    Between two calls of a function its caller may run another backward.
    """
    opinion = loop_order.Opinion()
    numbered = loop_order.gradient_items(path)
    items, iteration = [item for item, _ in numbered], [number for _, number in numbered]
    for position, step in enumerate(items):
        origin = _gradients_of(script, items, position)
        if origin is None or not isinstance(step, Happened):
            continue
        backward, zero = origin
        if zero is None:
            earlier = [item for item in items[:backward] if isinstance(item, Happened)]
            clearings = [item for item in earlier if isinstance(item.event, ZeroGrad)]
            helpful = [item.event for item in clearings if loop_order.concerns(item, step)]
            opinion.innocent |= set(loop_order.places([step.event, *helpful]))
        elif iteration[backward] == iteration[zero] == iteration[position]:
            clearing = items[zero]
            assert isinstance(clearing, Happened)
            opinion.guilty.update(dict.fromkeys(loop_order.places([clearing.event]), Order.CLEARED_TOO_LATE))
        elif not is_function or iteration[zero] == iteration[position]:
            opinion.guilty.update(dict.fromkeys(loop_order.places([step.event]), Order.STEP_BEFORE_BACKWARD))
    return opinion


def _gradients_of(script: Script, items: Sequence[Happened | Hidden], position: int) -> tuple[int, int | None] | None:
    """The backward whose gradients a step uses and the zero_grad that cleared them; None if the backward is unknown."""
    step = items[position]
    if isinstance(step, Hidden) or not isinstance(step.event, OptimizerStep) or step.event.inside_closure:
        return None
    zero: int | None = None
    for index in range(position - 1, -1, -1):
        item = items[index]
        if isinstance(item, Hidden):
            if loop_order.could(script, item, Ability.BACKWARD | Ability.STEP, step.subject):
                return None
        elif isinstance(item.event, Backward):
            return index, zero
        elif isinstance(item.event, ZeroGrad) and zero is None and loop_order.concerns(item, step):
            zero = index
        elif isinstance(item.event, OptimizerStep) and loop_order.concerns(item, step):
            return None
    return None


def _no_step(script: Script, ways: Sequence[Path], is_function: bool) -> Iterator[Finding]:
    if GRADIENTS_TAKEN.search(script.text):
        return
    items = list({id(item): item for way in ways for item in loop_order.gradient_events(way)}.values())
    unread = loop_order.hidden_on(ways, Ability.STEP)
    idle = _never_stepped(script, items, unread)
    # Whoever calls a function may step the optimizer that it clears.
    certain = bool(idle) and not is_function
    if is_function and not any(item.subject is idle and isinstance(item.event, ZeroGrad) for item in items):
        return
    if not idle and not unread:
        idle = next((name for item in items if (name := _only_cleared(script, ways, item))), "")
    if not idle:
        return
    # The backward that follows the optimizer's own zero_grad, or else the first.
    zeroed = [index for index, item in enumerate(items) if item.subject is idle and isinstance(item.event, ZeroGrad)]
    start = zeroed[0] if zeroed else 0
    backward = next((item.event for item in (*items[start:], *items) if isinstance(item.event, Backward)), None)
    if backward is not None:
        name = idle if isinstance(idle, str) else idle.label or idle.last
        message = f"{name}.step() is never called: backward() runs, but no weight changes."
        edits = fixes.step_added(script, items, idle, backward.place)
        fix = fix_with(f"Call {name}.step() after backward(). {RIGHT_ORDER}", edits, "unsafe")
        yield _finding(Order.NO_STEP, message, fix, backward.place, certain=certain)


def _never_stepped(script: Script, items: Sequence[Happened], unread: Sequence[Hidden]) -> Instance | str:
    """An optimizer that belongs to this loop and that nothing in the script steps: the object, or its name.

    `unread` are calls that may step some optimizer, or change weights by hand.
    """
    stepped, all_known = _all_stepped(script)
    if not all_known:
        return ""
    steps_here = any(isinstance(item.event, OptimizerStep) for item in items)
    zeroed = {id(item.subject) for item in items if isinstance(item.event, ZeroGrad)}
    losses = [item.value for item in items if isinstance(item.event, Backward) and item.value is not None]
    trained = {id(module) for module in loop_order.modules_behind(losses)}
    for made in script.facts.optimizers:
        # If another optimizer steps, the loss may depend on both: only its own zero_grad shows that this one counts.
        belongs = id(made.optimizer) in zeroed or (not steps_here and loop_order.owners(made.parameters) & trained)
        hidden = any(loop_order.could(script, call, Ability.STEP, made.optimizer) for call in unread)
        if belongs and not hidden and id(made.optimizer) not in stepped | script.facts.escaped:
            return made.optimizer
    names = [item.event.optimizer for item in items if isinstance(item.event, ZeroGrad) and item.event.optimizer]
    alone = bool(names) and not unread and not stepped and not script.facts.optimizers and ".step(" not in script.text
    return names[0] if alone and names[0] else ""


def _only_cleared(script: Script, ways: Sequence[Path], zero: Happened) -> str:
    """The name of an optimizer from elsewhere, if every path clears it and its function does nothing else with it."""
    name = zero.event.optimizer if isinstance(zero.event, ZeroGrad) else None
    place = zero.event.place
    if not name or place is None or isinstance(zero.subject, Instance) or not all(zero in way for way in ways):
        return ""
    functions = (node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef))
    function = next((node for node in functions if node.lineno <= place.line <= (node.end_lineno or 0)), None)
    if function is None or function.name != place.function or place.path != script.path:
        return ""
    parts = [part for statement in function.body for part in ast.walk(statement)]
    # Whoever reads gradients or takes turns with its caller may leave the step to someone else.
    shared = any(isinstance(part, ast.Yield) or getattr(part, "attr", "") == "grad" for part in parts)
    plain = {id(part.value) for part in parts if isinstance(part, ast.Attribute) and part.attr in NO_STEP_IN}
    uses = [part for part in parts if isinstance(part, ast.Name | ast.Attribute) and dotted(part) == name]
    return "" if shared or any(id(part) not in plain for part in uses) else name


@lru_cache(maxsize=1)
def _all_stepped(script: Script) -> tuple[frozenset[int], bool]:
    """The optimizers that are stepped anywhere, and whether these are all; computed once for all loops."""
    steps = [item.subject for item in events_in(script.facts.trace) if isinstance(item.event, OptimizerStep)]
    # Parameters read from the groups are updated by hand somewhere.
    by_hand = any(word in script.text for word in ('["params"]', "['params']"))
    return frozenset(map(id, steps)), not by_hand and all(isinstance(subject, Instance) for subject in steps)


def _never_cleared(script: Script, ways: Sequence[Path], is_function: bool) -> Iterator[Finding]:
    every = [item for way in ways for item in loop_order.gradient_events(way)]
    zeros = [item for item in every if isinstance(item.event, ZeroGrad)]
    known = all(
        isinstance(item.subject, Instance) for item in every if isinstance(item.event, ZeroGrad | OptimizerStep)
    )
    if not known and zeros:
        return
    # What is stepped in each iteration is an optimizer, wherever it came from; its class may clear by itself.
    if is_function and "zero_grad" in script.text:
        return
    # A generator, a hook or a callback that was not followed may clear them as well.
    unread, elsewhere = _clearings(script)
    if unread or not elsewhere <= {place.function for place in loop_order.places(item.event for item in every)}:
        return
    calls = loop_order.hidden_on(ways, Ability.CLEAR)
    for step in _repeated_steps(ways):
        may_clear = [call for call in calls if loop_order.could(script, call, Ability.CLEAR, step.subject)]
        if may_clear and not _sometimes_only(ways, step, may_clear):
            continue
        if not any(loop_order.concerns(zero, step) for zero in zeros) and isinstance(step.event, OptimizerStep):
            label = step.event.optimizer
            certain = known and not may_clear and not is_function
            message = f"{label} steps in every iteration, but its gradients are never cleared."
            alone = len({item.event.optimizer for item in every if isinstance(item.event, OptimizerStep)}) == 1
            edits = fixes.clearing_added(script, step.event) if alone else None
            fix = fix_with(f"Call {label}.zero_grad() before each backward(). {RIGHT_ORDER}", edits, "unsafe")
            yield _finding(Order.NEVER_CLEARED, message, fix, step.event.place, certain=certain)


def _sometimes_only(ways: Sequence[Path], step: Happened, calls: Sequence[Hidden]) -> bool:
    """Does some path step twice without these calls, none of which was given an optimizer?"""
    given = [value for call in calls for value in call.subjects]
    if not given or not all(is_module(value) or isinstance(value, Parameters) for value in given):
        return False
    return any(sum(item is step for item in way) > 1 and not any(call in way for call in calls) for way in ways)


@lru_cache(maxsize=1)
def _clearings(script: Script) -> tuple[bool, frozenset[str]]:
    """Whether an unread line clears gradients, and which functions clear them outside of training loops."""
    everything = list(events_in(script.facts.trace))
    read = {place.line for place in loop_order.places(item.event for item in everything)}
    unread = any(CLEARS.search(line) for number, line in enumerate(script.lines, 1) if number not in read)
    in_loops = {id(item) for loop in script.training_loops for item in events_in(loop.body)}
    outside = [item.event for item in everything if isinstance(item.event, ZeroGrad) and id(item) not in in_loops]
    return unread, frozenset(place.function for place in loop_order.places(outside) if place.function)


def _repeated_steps(ways: Sequence[Path]) -> list[Happened]:
    """Steps, one for each optimizer, that some path takes at least twice."""
    found: dict[object, Happened] = {}
    for way in ways:
        steps = [item for item in loop_order.gradient_events(way) if isinstance(item.event, OptimizerStep)]
        for step in steps:
            if sum(other is step for other in steps) > 1:
                found.setdefault(id(step.subject) if step.subject is not None else step.event.place, step)
    return list(found.values())
