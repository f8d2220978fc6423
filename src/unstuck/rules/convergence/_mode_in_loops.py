"""What mode a model is in when a loop trains it, and whether evaluation ever switched it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Forward, ModeChange, OptimizerSeen, OptimizerStep, Place
from unstuck.lazy import pattern
from unstuck.rules.shared import loop_order as order, modes
from unstuck.source.reader import knowledge
from unstuck.source.trace import (
    Branch,
    Happened,
    Hidden,
    Inlined,
    Located,
    Loop,
    Node,
    Path,
    Turn,
    events_in,
    located,
    loops_in,
    paths,
)
from unstuck.source.values import UNKNOWN, Const, Group, Instance, Parameters, Value, alternatives, members, root

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

ORDERED = (ModeChange, Forward, Backward, OptimizerStep, OptimizerSeen)
ON_PURPOSE = pattern(r"(?i)mc_?drop|monte.?carlo|bayes|uncertain")
FREEZES = pattern(r"(?i)freez|frozen|fix|keep|on purpose|statistic|determin")
COMPARES = pattern(r"[<>]|==|\bin\b|last|final|end|best|done|stop")


class Stuck(msgspec.Struct, eq=False):
    """A model that is trained after `eval()` without a `train()` in between."""

    model: Instance
    layer: str
    eval_place: Place
    forward_place: Place | None
    step_place: Place | None
    loop: Loop
    """The innermost loop around the training forward pass."""
    outermost: bool
    certain: bool = True
    """The layer is known to care, not only likely to."""


class Begun(msgspec.Struct, eq=False):
    """A new model that is put in eval mode before its training and never taken out of it."""

    model: Instance
    layer: str
    eval_place: Place
    step_place: Place | None


class _Pending(msgspec.Struct):
    """`eval()` was called on a model; what happened to it since."""

    place: Place
    evaluated: bool
    forward: Place | None = None
    backward: bool = False


def stuck_in_eval(script: Script) -> Iterator[Stuck]:
    """Models with Dropout or BatchNorm that every path trains in the mode an evaluation left behind."""
    if not any(called.name in (".eval", ".train") for called in script.facts.calls):
        return
    told: set[Place] = set()
    # Innermost first: `train()` at the start of an epoch does not help the steps after an `eval()` in the same epoch.
    for loop in reversed(list(loops_in(script.facts.trace))):
        switched = {id(item.subject): item for item in events_in(loop.body) if _switches_off(item)}
        if not switched or not any(isinstance(item.event, OptimizerStep) for item in events_in(loop.body)):
            continue
        ways = paths(loop, 2, ORDERED)
        models = [item.subject for item in switched.values() if not _out_of_sight(script, item.subject, loop)]
        found = [stuck for model in models for stuck in _stuck(loop, ways, model)]
        yield from (stuck for stuck in found if stuck.eval_place not in told)
        told.update(stuck.eval_place for stuck in found)


def _out_of_sight(script: Script, model: Value | None, loop: Loop | None = None) -> bool:
    """May a model be switched by ways that leave no event, or be frozen and in eval mode on purpose?"""
    calls = [called for called in script.facts.calls if loop is None or loop in called.loops]
    if any(_fetches_mode(called) or _trains_something(called) for called in calls):
        return True
    frozen = [option for fact in script.facts.frozen if not fact.trainable for option in alternatives(fact.owner)]
    mine = root(model) if isinstance(model, Instance) else None
    return any(not isinstance(owner, Instance) or root(owner) is mine for owner in frozen)


def _fetches_mode(called: Called) -> bool:
    """`getattr(model, name)`, where the name may be that of a mode."""
    if called.last != "getattr" or len(called.args) < 2 or not isinstance(called.args[0], Instance):
        return False
    names = alternatives(called.args[1])
    return knowledge.is_module(called.args[0]) and any(
        not isinstance(name, Const) or name.value in ("train", "eval") for name in names
    )


def _trains_something(called: Called) -> bool:
    """`module.train()` of a module that is not known: `for module in model.modules()`."""
    return called.last == "train" and isinstance(called.node.func, ast.Attribute) and called.receiver is UNKNOWN


def _has_escaped(script: Script, model: Instance) -> bool:
    """Was the model, or a list with it, given to code that could not be read?"""
    escaped = script.facts.escaped
    lists = (value for called in script.facts.calls for value in (*called.args, *called.kwargs.values()))
    inside = (group for group in lists if isinstance(group, Group) and id(group) in escaped)
    return id(model) in escaped or any(part is model for group in inside for part in members(group))


def _switches_off(item: Happened) -> bool:
    return isinstance(item.event, ModeChange) and not item.event.training


def _stuck(loop: Loop, ways: Sequence[Path], model: Value | None) -> Iterator[Stuck]:
    if not isinstance(model, Instance) or modes.switches_itself(root(model)):
        return
    certain = modes.mode_dependent(model)
    layer = certain or modes.perhaps_mode_dependent(model)
    if layer is None:
        return
    seen: dict[Place, tuple[Place | None, Place | None]] = {}
    for place in order.always(ways, lambda path: _opinion(path, model, seen)):
        if _comes_again(loop, place):
            forward, step = seen[place]
            inner = _innermost(loop, forward)
            yield Stuck(model, layer.last, place, forward, step, inner, inner is loop, certain is not None)


def _opinion(path: Path, model: Instance, seen: dict[Place, tuple[Place | None, Place | None]]) -> order.Opinion:
    opinion = order.Opinion()
    pending: _Pending | None = None
    for item in path:
        if isinstance(item, Turn):
            if pending is not None and pending.forward is not None and not pending.backward:
                pending.evaluated = True  # The turn ended and nobody wanted gradients of what came out.
            continue
        if pending is not None and _ends(item, model):
            opinion.innocent.add(pending.place)
            pending = None
        elif isinstance(item, Happened) and _switches_off(item) and item.subject is model and item.event.place:
            pending = _Pending(item.event.place, modes.says_evaluation(item.event.place.function))
        elif pending is not None and isinstance(item, Happened):
            stepped = isinstance(item.event, OptimizerStep) and id(root(model)) in order.owners(item.subject)
            if stepped and pending.backward:
                opinion.guilty[pending.place] = "trained"
                seen[pending.place] = (pending.forward, item.event.place)
            _advance(pending, item, model)
    return opinion


def _ends(item: Happened | Hidden | Turn, model: Instance) -> bool:
    """The model is switched back, or may have been, or is a new one."""
    if not isinstance(item, Happened):
        return True
    event, subject = item.event, item.subject
    if isinstance(event, OptimizerSeen):
        return True
    if not isinstance(event, ModeChange) or not event.training:
        return False
    return not isinstance(subject, Instance) or root(subject) is root(model)


def _advance(pending: _Pending, item: Happened, model: Instance) -> None:
    event = item.event
    if isinstance(event, Forward) and isinstance(item.subject, Instance) and modes.within(item.subject, model):
        pending.evaluated = pending.evaluated or not event.grad_enabled
        trains = event.grad_enabled and not (event.place and modes.says_evaluation(event.place.function))
        pending.forward = event.place if trains else None
        pending.backward = False
    elif isinstance(event, Backward):
        pending.backward = pending.evaluated and pending.forward is not None


def _comes_again(loop: Loop, place: Place) -> bool:
    """Is another turn sure to follow the one with the evaluation? Not if it stands behind `if epoch == last`."""
    guards = [branch for branch in _guards(loop.body, place) if branch.varies]
    return all("%" in branch.condition or not COMPARES.search(branch.condition) for branch in guards)


def _guards(block: Sequence[Node], place: Place) -> Iterator[Branch]:
    """Every branch around what happens at a place."""
    for node in block:
        if isinstance(node, Branch):
            if any(item.event.place == place for item in events_in([node])):
                yield node
            yield from _guards([*node.then, *node.other], place)
        elif isinstance(node, Loop | Inlined):
            yield from _guards(node.body, place)


def _innermost(loop: Loop, forward: Place | None) -> Loop:
    """The innermost loop around the forward pass that stands in the same function."""
    for item in located(loop.body, (loop,)):
        if item.item.event.place == forward and forward is not None:
            same = [around for around in item.loops if around.place.function == forward.function]
            if same and same[-1].place.path == forward.path:
                return same[-1]
    return loop


def begun_in_eval(script: Script) -> Iterator[Begun]:
    """New models with Dropout or BatchNorm that are in eval mode from before the training to its end."""
    facts = script.facts
    if ".eval()" not in script.text or re.search(r"\.train\(|\.training\s*=[^=]", script.text):
        return
    if any(called.name.endswith(".train") or _fetches_mode(called) for called in facts.calls):
        return
    for block in (facts.trace[: facts.reached], *([node] for node in facts.trace[facts.reached :])):
        items = list(located(block))
        for first in items:
            model, place = first.item.subject, first.item.event.place
            if not _switches_off(first.item) or first.loops or first.branches or place is None:
                continue
            if isinstance(model, Instance) and _is_trained_whole(script, model) and not _meant(script, place):
                layer = modes.mode_dependent(model)
                step = _step_after(items, first, model)
                if layer is not None and step is not None:
                    yield Begun(model, layer.last, place, step.event.place)


def _step_after(items: Sequence[Located], first: Located, model: Instance) -> Happened | None:
    """The first step in a loop that trains the model after `first`, with a forward pass in that loop."""
    ran = False
    for one in items:
        item, later = one.item, one.item.time > first.item.time and bool(one.loops)
        if later and isinstance(item.event, Forward) and item.subject is model:
            ran = ran or item.event.grad_enabled
        if later and ran and isinstance(item.event, OptimizerStep) and id(model) in order.owners(item.subject):
            return item
    return None


def _is_trained_whole(script: Script, model: Instance) -> bool:
    """Is everything in the model trained, from new weights? Old statistics are kept on purpose."""
    facts = script.facts
    parts = list(modes.certain_parts(model))
    old = any(id(part) in facts.loaded or not part.fresh or part.kind.startswith("torchvision.") for part in parts)
    if old or "load_state_dict" in script.text or facts.frozen or _has_escaped(script, model):
        return False
    if modes.switches_itself(model):
        return False
    given = [option for made in facts.optimizers for option in alternatives(made.parameters)]
    return any(isinstance(option, Parameters) and option.owner is model for option in given)


def _meant(script: Script, place: Place) -> bool:
    """Do the words around the line say that eval mode is wanted?"""
    around = script.lines[max(0, place.line - 2) : place.line] if place.path == script.path else []
    return any(FREEZES.search(line) for line in around)


def never_in_eval(script: Script) -> Iterator[tuple[Instance, str, Called]]:
    """Trained models with Dropout or BatchNorm whose evaluation under no_grad nobody ever preceded by eval()."""
    calls = script.facts.calls
    trained = {owner for made in script.facts.optimizers for owner in order.owners(made.parameters)}
    if not trained or _anyone_switches(script):
        return
    told: set[int] = set()
    for called in calls:
        model = called.receiver
        if called.recording or not isinstance(model, Instance) or not knowledge.is_module(model) or id(model) in told:
            continue
        unseen = _has_escaped(script, model) or modes.switches_itself(model)
        if id(model) not in trained or unseen or not modes.evaluates(called):
            continue
        layer = modes.mode_dependent(model)
        if layer is not None and not ON_PURPOSE.search(script.text):
            told.add(id(model))
            yield model, layer.last, called


def _anyone_switches(script: Script) -> bool:
    """Does anything switch a model to eval mode?"""
    facts = script.facts
    for called in facts.calls:
        given = called.node.args or called.node.keywords
        if called.name.endswith(".eval") or (called.name.endswith(".train") and given) or _fetches_mode(called):
            return True
    return ".eval()" in script.text or any(item.name == "training" for item in facts.attributes)
