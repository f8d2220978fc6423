"""O02 in the source: what was given to optimizers, and what happened to the modules before and after."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from unstuck.events import Backward, OptimizerStep, Place
from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.rules.convergence.params_not_in_optimizer import ALL_FROZEN, Missing, rule
from unstuck.rules.shared.loop_order import modules_behind, owners
from unstuck.source import Script
from unstuck.source.facts import ChildReplaced, Facts, Frozen, OptimizerMade
from unstuck.source.reader import knowledge
from unstuck.source.trace import events_in
from unstuck.source.values import Const, Group, Instance, Parameters, Value, members, root

REGISTERING = (
    "add_module",
    "register_module",
    "register_parameter",
    "_modules[",
    "setattr(",
    "def parameters",
    "def named_parameters",
)


def find(script: Script) -> Iterator[Finding]:
    """What is certain, then what is likely."""
    facts = script.facts
    yield from _in_plain_lists(script, facts)
    yield from _created_in_forward(facts)
    if not facts.backwards:
        return
    for made in facts.optimizers:
        yield from _replaced_later(facts, made)
        yield from _all_frozen(facts, made)
        yield from _unfrozen_later(facts, made)
    yield from _never_given(script)


def _finding(
    variant: Missing,
    message: str,
    cause: str,
    fix: str,
    name: str,
    place: Place | None,
    related: Sequence[Place] = (),
    *,
    certain: bool = True,
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject("module", name),
        place=place,
        related=related,
        severity=None if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
        variant=variant,
    )


def _replaced_later(facts: Facts, made: OptimizerMade) -> Iterator[Finding]:
    whole = {id(module) for module in _given(made.parameters)}
    for change in facts.replaced:
        if change.time < made.time or id(root(change.owner)) not in whole or _is_handled_later(facts, change, made):
            continue
        name = f"{_label(change.owner)}.{change.name}"
        yield _finding(
            Missing.REPLACED_LATER,
            f"{name} is replaced after {_label(made.optimizer)} was built with the old parameters.",
            "The optimizer still holds the old tensors, so the new ones keep their initial values.",
            "Replace the module before you build the optimizer, or add its parameters with "
            "optimizer.add_param_group().",
            name,
            change.place,
            (made.place,),
        )


def _is_handled_later(facts: Facts, change: ChildReplaced, made: OptimizerMade) -> bool:
    """Is there no training after the change, or may an optimizer get the new parameters?"""
    if not any(call.time > change.time for call in facts.backwards):
        return True
    later = any(other.time > change.time for other in facts.optimizers)
    added = any(time > change.time for _, time in facts.groups_added)
    return later or added or id(made.optimizer) in facts.escaped or id(root(change.owner)) in facts.escaped


def _all_frozen(facts: Facts, made: OptimizerMade) -> Iterator[Finding]:
    given = [value for value in members(made.parameters) if not isinstance(value, Const)]
    freezes = [_whole_freeze(facts, value) for value in given]
    if not freezes or not all(freezes):
        return
    last = max((freeze for freeze in freezes if freeze), key=lambda freeze: freeze.time)
    unfrozen = any(state.trainable for state in facts.frozen)
    trained_before = any(call.time < last.time for call in facts.backwards)
    replaced = any(change.time > last.time for change in facts.replaced)
    if not unfrozen and not trained_before and not replaced:
        names = " and ".join(dict.fromkeys(_label(v.owner) for v in given if isinstance(v, Parameters)))
        yield _finding(
            Missing.ALL_FROZEN,
            f"Every parameter of {names} is frozen, and {_label(made.optimizer)} is given nothing else to train.",
            ALL_FROZEN,
            "Leave the part that should learn unfrozen, for example the new head.",
            names,
            last.place,
            (made.place,),
        )


def _whole_freeze(facts: Facts, given: Value) -> Frozen | None:
    """The statement that froze everything an optimizer was given here, if it certainly froze all of it."""
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


def _unfrozen_later(facts: Facts, made: OptimizerMade) -> Iterator[Finding]:
    later = any(other.time > made.time for other in facts.optimizers)
    added = any(time > made.time for _, time in facts.groups_added)
    if later or added or id(made.optimizer) in facts.escaped:
        return
    for chosen in members(made.parameters):
        if not isinstance(chosen, Parameters) or not isinstance(chosen.owner, Instance):
            continue
        for state in _left_out(facts, made, chosen, chosen.owner):
            name = _label(state.owner)
            yield _finding(
                Missing.UNFROZEN_LATER,
                f"{name} is unfrozen after {_label(made.optimizer)} was built from the trainable parameters only.",
                "What is unfrozen later gets gradients but is never updated, because the optimizer does not have it.",
                "Add the parameters with optimizer.add_param_group() when you unfreeze them.",
                name,
                state.place,
                (made.place,),
            )


def _left_out(facts: Facts, made: OptimizerMade, chosen: Parameters, owner: Instance) -> list[Frozen]:
    """Later unfreezes of what was frozen when the optimizer's parameters were chosen."""
    whole = root(owner)
    given = {id(module) for module in _given(made.parameters, whole_only=True)}
    states = [state for state in facts.frozen if _concerns(state, whole)]
    if not any(state.time < made.time and not state.trainable for state in states):
        return []
    unfreezes = [s for s in states if s.trainable and s.time > made.time and id(s.owner) not in given]
    return [state for state in unfreezes if chosen.only_trainable or (owner is not whole and state.owner is not owner)]


def _in_plain_lists(script: Script, facts: Facts) -> Iterator[Finding]:
    for owner, name, group in facts.plain_lists:
        if owner.cls is None or id(owner) in facts.escaped or not knowledge.contains_weights(group):
            continue
        if not _is_only_in_list(facts, group) or not _is_used_unregistered(script, owner, name):
            continue
        kind = "dict" if group.keys is not None else "list"
        container = "nn.ModuleDict" if kind == "dict" else "nn.ModuleList"
        yield _finding(
            Missing.UNREGISTERED,
            f"self.{name} holds layers in a plain {kind}, so {owner.last}.parameters() does not return them.",
            "nn.Module registers only modules that are attributes or in its own containers, so the optimizer never "
            "gets these.",
            f"Wrap the {kind}: self.{name} = {container}(...).",
            f"{owner.last}.{name}",
            group.place,
            tuple(place for layer in members(group) for place in facts.called.get(id(layer), ())),
            certain=any(knowledge.is_module(value) for value in members(group)),
        )


def _is_only_in_list(facts: Facts, group: Group) -> bool:
    """Are its layers registered under no other name, in no optimizer, and not fixed on purpose?"""
    layers = [value for value in members(group) if isinstance(value, Instance) and knowledge.has_weights(value)]
    given = {
        id(value.owner)
        for made in facts.optimizers
        for value in members(made.parameters)
        if isinstance(value, Parameters)
    }
    frozen = {id(state.owner) for state in facts.frozen}
    if not layers or any(layer.parent is not None for layer in layers):
        return False
    # A list around one module that has its own name is a known way to hide a teacher from the state dict.
    hidden = group.complete and len(group.items) == 1 and bool(layers[0].label)
    return not hidden and not any(id(layer) in given | frozen | facts.loaded for layer in layers)


def _is_used_unregistered(script: Script, owner: Instance, name: str) -> bool:
    """Does a method read the list, while nothing registers its modules or returns their parameters another way?"""
    assert owner.cls is not None
    text = ast.unparse(owner.cls.node)
    wraps = (f"List(self.{name}", f"Sequential(*self.{name}", f"Dict(self.{name}", f"Sequential(self.{name}")
    if any(word in text for word in (*REGISTERING, *wraps)):
        return False
    node = owner.cls.node
    outside = [*script.lines[: node.lineno - 1], *script.lines[node.end_lineno or node.lineno :]]
    if any(re.search(rf"\.{name}\b", line) for line in outside):
        return False
    # What the constructor and its helpers take from it may become an attribute, which registers it.
    made = owner.cls.methods.get("__init__")
    building = ast.unparse(made) if made is not None else ""
    readers = [
        method for key, method in owner.cls.methods.items() if key != "__init__" and f"self.{key}(" not in building
    ]
    return any(f"self.{name}" in ast.unparse(method) for method in readers)


def _created_in_forward(facts: Facts) -> Iterator[Finding]:
    for layer, place in facts.made_in_forward:
        called = id(layer) in facts.called and id(layer) not in facts.escaped and place.function == "forward"
        if called and layer.parent is None and not layer.label.startswith("self."):
            yield _finding(
                Missing.CREATED_IN_FORWARD,
                f"nn.{layer.last} is created inside forward().",
                "Each call creates a layer with new random weights that are in no optimizer, so it cannot learn.",
                "Create the layer in __init__ as an attribute, and only call it in forward().",
                f"nn.{layer.last}",
                place,
            )


def _never_given(script: Script) -> Iterator[Finding]:
    """A module of the user's own class that the loss of a training loop flows through and that is in no optimizer."""
    facts = script.facts
    if not all(owners(made.parameters) for made in facts.optimizers) or facts.groups_added:
        return
    if any(
        isinstance(item, Parameters) and item.partial for made in facts.optimizers for item in members(made.parameters)
    ):
        return
    given = {owner for made in facts.optimizers for owner in owners(made.parameters)}
    for module in _trained_in_loops(script):
        exempt = id(module) in given | facts.escaped | facts.loaded
        frozen = any(_concerns(frozen, module) for frozen in facts.frozen)
        if not exempt and not frozen and module.cls is not None and knowledge.has_weights(module) and module.label:
            yield _finding(
                Missing.NEVER_GIVEN,
                f"The loss flows through {_label(module)}, but its parameters are in no optimizer.",
                "An optimizer updates only what it was given, so these weights keep their random initial values.",
                "Pass its parameters to an optimizer too; if it should stay fixed, call requires_grad_(False) on it.",
                _label(module),
                module.place,
                tuple(made.place for made in facts.optimizers),
                certain=False,
            )


def _trained_in_loops(script: Script) -> list[Instance]:
    """Modules that lead to the losses of loops whose optimizers are all known."""
    found: dict[int, Instance] = {}
    for loop in script.training_loops:
        items = list(events_in(loop.body))
        steps = [item.subject for item in items if isinstance(item.event, OptimizerStep)]
        if steps and all(isinstance(optimizer, Instance) for optimizer in steps):
            values = [item.value for item in items if isinstance(item.event, Backward) and item.value is not None]
            found.update((id(module), module) for module in modules_behind(values))
    return list(found.values())


def _given(parameters: Value, *, whole_only: bool = False) -> list[Instance]:
    """Modules whose `.parameters()` the optimizer got, all of them or (unless `whole_only`) the trainable ones."""
    values = [value for value in members(parameters) if isinstance(value, Parameters) and not value.partial]
    chosen = [value.owner for value in values if not (whole_only and value.only_trainable)]
    return [owner for owner in chosen if isinstance(owner, Instance)]


def _label(value: Value) -> str:
    return (value.label or value.last) if isinstance(value, Instance) else "the model"
