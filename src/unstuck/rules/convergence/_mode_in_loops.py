"""What mode a model is in when a loop trains it, and whether evaluation ever switched it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Forward, ModeChange, OptimizerSeen, OptimizerStep, Place
from unstuck.rules import modes, order
from unstuck.source import knowledge
from unstuck.source.trace import (
    Branch,
    Happened,
    Hidden,
    Inlined,
    Loop,
    Node,
    Path,
    Turn,
    events_in,
    located,
    loops_in,
    paths,
)
from unstuck.source.values import Instance, Value, root

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

ORDERED = (ModeChange, Forward, Backward, OptimizerStep, OptimizerSeen)
ON_PURPOSE = re.compile(r"(?i)mc_?drop|monte.?carlo|bayes|uncertain")
COMPARES = re.compile(r"[<>]|==|\bin\b|last|final|end|best|done|stop")


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
        found = [stuck for item in switched.values() for stuck in _stuck(loop, ways, item.subject)]
        yield from (stuck for stuck in found if stuck.eval_place not in told)
        told.update(stuck.eval_place for stuck in found)


def _switches_off(item: Happened) -> bool:
    return isinstance(item.event, ModeChange) and not item.event.training


def _stuck(loop: Loop, ways: Sequence[Path], model: Value | None) -> Iterator[Stuck]:
    layer = modes.mode_dependent(model) if isinstance(model, Instance) else None
    if layer is None or not isinstance(model, Instance) or modes.switches_itself(root(model)):
        return
    seen: dict[Place, tuple[Place | None, Place | None]] = {}
    for place in order.always(ways, lambda path: _opinion(path, model, seen)):
        if _comes_again(loop, place):
            forward, step = seen[place]
            inner = _innermost(loop, forward)
            yield Stuck(model, layer.last, place, forward, step, inner, inner is loop)


def _opinion(path: Path, model: Instance, seen: dict[Place, tuple[Place | None, Place | None]]) -> order.Opinion:
    opinion = order.Opinion()
    pending: _Pending | None = None
    for item in path:
        if isinstance(item, Turn):
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
        unseen = id(model) in script.facts.escaped or modes.switches_itself(model)
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
        if called.name.endswith(".eval") or (called.name.endswith(".train") and called.node.args):
            return True
    return ".eval()" in script.text or any(item.name == "training" for item in facts.attributes)
