"""How O02 reads a script: what was given to optimizers, and what happened to the modules around that moment."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, OptimizerStep, Place
from unstuck.rules.shared.loop_order import modules_behind, owners
from unstuck.source.facts import ChildReplaced, Facts, Frozen, OptimizerMade
from unstuck.source.reader import knowledge
from unstuck.source.trace import events_in
from unstuck.source.values import Const, Group, Instance, Parameters, Value, members, root

if TYPE_CHECKING:
    from unstuck.source import Script

REGISTERING = (
    "add_module",
    "register_module",
    "register_parameter",
    "_modules[",
    "setattr(",
    "def parameters",
    "def named_parameters",
)


class Untrained(msgspec.Struct, frozen=True):
    """One thing in the script that no optimizer will train, and how we know."""

    message: str
    cause: str
    fix: str
    name: str
    place: Place | None
    related: tuple[Place, ...] = ()
    certain: bool = True


def find(script: Script) -> Iterator[Untrained]:
    """Everything that is certain, and what is likely."""
    facts = script.facts
    yield from _in_plain_lists(script, facts)
    yield from _made_in_forward(facts)
    if not facts.backwards:
        return
    for made in facts.optimizers:
        yield from _replaced_later(facts, made)
        yield from _nothing_left(facts, made)
        yield from _unfrozen_later(facts, made)
    yield from _never_given(script)


def _replaced_later(facts: Facts, made: OptimizerMade) -> Iterator[Untrained]:
    whole = _given(made.parameters)
    for change in facts.replaced:
        if change.time < made.time or id(root(change.owner)) not in {id(module) for module in whole}:
            continue
        if _cared_for_later(facts, change, made):
            continue
        name = f"{_label(change.owner)}.{change.name}"
        yield Untrained(
            f"{name} is replaced after {_label(made.optimizer)} was built on the old parameters.",
            "The optimizer still holds the tensors that were replaced, so the new ones keep their initial values.",
            "Replace the module before the optimizer is built, or add its parameters with optimizer.add_param_group().",
            name,
            change.place,
            (made.place,),
        )


def _cared_for_later(facts: Facts, change: ChildReplaced, made: OptimizerMade) -> bool:
    if not any(call.time > change.time for call in facts.backwards):
        return True
    later = [other for other in facts.optimizers if other.time > change.time]
    added = any(time > change.time for _, time in facts.groups_added)
    return bool(later) or added or id(made.optimizer) in facts.escaped or id(root(change.owner)) in facts.escaped


def _nothing_left(facts: Facts, made: OptimizerMade) -> Iterator[Untrained]:
    given = [value for value in members(made.parameters) if not isinstance(value, Const)]
    freezes = [_whole_freeze(facts, value) for value in given]
    if not freezes or not all(freezes):
        return
    last = max((freeze for freeze in freezes if freeze), key=lambda freeze: freeze.time)
    thawed = any(state.trainable for state in facts.frozen)
    trained_before = any(call.time < last.time for call in facts.backwards)
    renewed = any(change.time > last.time for change in facts.replaced)
    if not thawed and not trained_before and not renewed:
        names = " and ".join(dict.fromkeys(_label(v.owner) for v in given if isinstance(v, Parameters)))
        yield Untrained(
            f"Every parameter of {names} is frozen and {_label(made.optimizer)} is given nothing else to train.",
            "With requires_grad=False everywhere there is no gradient to compute and nothing to update.",
            "Leave the part that should learn unfrozen, for example the new head.",
            names,
            last.place,
            (made.place,),
        )


def _whole_freeze(facts: Facts, given: Value) -> Frozen | None:
    """The moment that froze everything an optimizer was given here, if it is certain that all of it was."""
    if not isinstance(given, Parameters) or not isinstance(given.owner, Instance):
        return None
    owner = given.owner
    if not knowledge.is_module(owner) or id(owner) in facts.escaped or id(root(owner)) in facts.escaped:
        return None
    above = {id(owner), id(root(owner))}
    whole = [state for state in facts.frozen if id(state.owner) in above and not state.trainable and not state.partly]
    return whole[-1] if whole else None


def _concerns(frozen: Frozen, module: Instance) -> bool:
    return isinstance(frozen.owner, Instance) and (frozen.owner is module or root(frozen.owner) is module)


def _unfrozen_later(facts: Facts, made: OptimizerMade) -> Iterator[Untrained]:
    later = any(other.time > made.time for other in facts.optimizers)
    added = any(time > made.time for _, time in facts.groups_added)
    if later or added or id(made.optimizer) in facts.escaped:
        return
    for chosen in members(made.parameters):
        if isinstance(chosen, Parameters) and isinstance(chosen.owner, Instance):
            yield from (_thawed_too_late(state, made) for state in _left_out(facts, made, chosen, chosen.owner))


def _left_out(facts: Facts, made: OptimizerMade, chosen: Parameters, owner: Instance) -> list[Frozen]:
    """Later thaws of something that was frozen, and so not among the parameters chosen for the optimizer."""
    whole = root(owner)
    given = {id(module) for module in _given(made.parameters, whole_only=True)}
    states = [state for state in facts.frozen if _concerns(state, whole)]
    if not any(state.time < made.time and not state.trainable for state in states):
        return []
    thaws = [s for s in states if s.trainable and s.time > made.time and id(s.owner) not in given]
    return [state for state in thaws if chosen.only_trainable or (owner is not whole and state.owner is not owner)]


def _thawed_too_late(state: Frozen, made: OptimizerMade) -> Untrained:
    name = _label(state.owner)
    return Untrained(
        f"{name} is unfrozen after {_label(made.optimizer)} was built from the trainable parameters only.",
        "The optimizer was given only what was trainable then, so what is unfrozen later gets gradients but is never "
        "updated.",
        "Add the parameters with optimizer.add_param_group() when you unfreeze them.",
        name,
        state.place,
        (made.place,),
    )


def _in_plain_lists(script: Script, facts: Facts) -> Iterator[Untrained]:
    for owner, name, group in facts.plain_lists:
        if owner.cls is None or id(owner) in facts.escaped or not knowledge.contains_weights(group):
            continue
        if not _only_in_the_list(facts, owner, group) or not _used_but_not_registered(script, owner, name):
            continue
        kind = "dict" if group.keys is not None else "list"
        container = "nn.ModuleDict" if kind == "dict" else "nn.ModuleList"
        yield Untrained(
            f"self.{name} keeps layers in a plain {kind}, so {owner.last}.parameters() does not contain them.",
            "nn.Module registers only modules that are attributes or sit in its own containers; the "
            "optimizer never gets these.",
            f"Wrap the {kind}: self.{name} = {container}(...).",
            f"{owner.last}.{name}",
            group.place,
            tuple(place for layer in members(group) for place in facts.called.get(id(layer), ())),
            certain=any(knowledge.is_module(value) for value in members(group)),
        )


def _only_in_the_list(facts: Facts, owner: Instance, group: Group) -> bool:
    """The layers of the list are not registered under another name, not given to an optimizer, not fixed on purpose."""
    layers = [value for value in members(group) if isinstance(value, Instance) and knowledge.has_weights(value)]
    held = {
        id(value.owner)
        for made in facts.optimizers
        for value in members(made.parameters)
        if isinstance(value, Parameters)
    }
    frozen = {id(state.owner) for state in facts.frozen}
    if not layers or any(layer.parent is not None for layer in layers):
        return False
    # A list around one module that has a name of its own is a known way to hide a teacher from the state dict.
    hidden = group.complete and len(group.items) == 1 and bool(layers[0].label)
    return not hidden and not any(id(layer) in held | frozen | facts.loaded for layer in layers)


def _used_but_not_registered(script: Script, owner: Instance, name: str) -> bool:
    """`forward` reads the list, and nothing registers its modules or hands their parameters out by other means."""
    assert owner.cls is not None
    text = ast.unparse(owner.cls.node)
    wraps = (f"List(self.{name}", f"Sequential(*self.{name}", f"Dict(self.{name}", f"Sequential(self.{name}")
    if any(word in text for word in (*REGISTERING, *wraps)):
        return False
    node = owner.cls.node
    outside = [*script.lines[: node.lineno - 1], *script.lines[node.end_lineno or node.lineno :]]
    if any(re.search(rf"\.{name}\b", line) for line in outside):
        return False
    readers = [method for key, method in owner.cls.methods.items() if key != "__init__"]
    return any(f"self.{name}" in ast.unparse(method) for method in readers)


def _made_in_forward(facts: Facts) -> Iterator[Untrained]:
    for layer, place in facts.made_in_forward:
        called = id(layer) in facts.called and id(layer) not in facts.escaped and place.function == "forward"
        if called and layer.parent is None and not layer.label.startswith("self."):
            yield Untrained(
                f"nn.{layer.last} is created inside forward().",
                "Each call makes a layer with new random weights that no optimizer has ever seen, so it cannot learn.",
                "Create the layer in __init__ as an attribute, and only call it in forward().",
                f"nn.{layer.last}",
                place,
            )


def _never_given(script: Script) -> Iterator[Untrained]:
    """A module of the user's, made here, that a training loop's loss flows through and that no optimizer holds."""
    facts = script.facts
    if not all(owners(made.parameters) for made in facts.optimizers) or facts.groups_added:
        return
    if any(_partial(made.parameters) for made in facts.optimizers):
        return
    held = {owner for made in facts.optimizers for owner in owners(made.parameters)}
    for module in _trained_in_loops(script):
        spared = id(module) in held | facts.escaped | facts.loaded
        frozen = any(_concerns(frozen, module) for frozen in facts.frozen)
        if not spared and not frozen and module.cls is not None and knowledge.has_weights(module) and module.label:
            yield Untrained(
                f"The loss flows through {_label(module)}, and no optimizer is given its parameters.",
                "An optimizer updates only what it was given, so these weights keep their initial random values.",
                "Give its parameters to an optimizer too; if it is meant to stay fixed, call "
                "requires_grad_(False) on it.",
                _label(module),
                module.place,
                tuple(made.place for made in facts.optimizers),
                certain=False,
            )


def _trained_in_loops(script: Script) -> list[Instance]:
    """Modules behind the losses of loops all of whose optimizers are known."""
    found: dict[int, Instance] = {}
    for loop in script.training_loops:
        items = list(events_in(loop.body))
        steps = [item.subject for item in items if isinstance(item.event, OptimizerStep)]
        if steps and all(isinstance(optimizer, Instance) for optimizer in steps):
            values = [item.value for item in items if isinstance(item.event, Backward) and item.value is not None]
            found.update((id(module), module) for module in modules_behind(values))
    return list(found.values())


def _partial(value: Value) -> bool:
    return any(isinstance(item, Parameters) and item.partial for item in members(value))


def _given(parameters: Value, *, whole_only: bool = False) -> list[Instance]:
    """Modules whose `.parameters()` the optimizer got, all of them or (unless `whole_only`) the trainable ones."""
    values = [value for value in members(parameters) if isinstance(value, Parameters) and not value.partial]
    chosen = [value.owner for value in values if not (whole_only and value.only_trainable)]
    return [owner for owner in chosen if isinstance(owner, Instance)]


def _label(value: Value) -> str:
    return (value.label or value.last) if isinstance(value, Instance) else "the model"
