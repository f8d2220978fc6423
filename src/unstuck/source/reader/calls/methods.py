"""Attribute calls: methods of tensors, modules, lists and other objects, such as `loss.backward()`, `model.train()`.

Methods of the user's own classes are functions (`functions.py`); those of optimizers, schedulers and scalers are in
`optimizers.py`; those of objects of which nothing is known in `unknown.py`.
"""

from __future__ import annotations

import ast
import re

from unstuck.events import Backward, Clip, ModeChange, ZeroGrad
from unstuck.lazy import pattern
from unstuck.source.nodes import parts_of
from unstuck.source.reader import knowledge
from unstuck.source.reader.abilities import ability_of
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.calls.lightning import lightning_optimizers
from unstuck.source.reader.calls.optimizers import optimizer_method, scaler_method, scheduler_method
from unstuck.source.reader.calls.unknown import RETURNS_ITSELF, unknown_method
from unstuck.source.reader.iteration import each
from unstuck.source.reader.reader import Call, Reader, callee
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Ability
from unstuck.source.values import (
    UNKNOWN,
    Const,
    Group,
    Instance,
    Method,
    Param,
    Parameters,
    Symbol,
    Tensor,
    UserFunction,
    Value,
    adopt,
    alternatives,
)

GRADIENT_HOOKS = frozenset(
    "register_hook register_post_accumulate_grad_hook register_step_pre_hook register_step_post_hook".split()
)
STEPS_BY_HAND = frozenset({"add_", "sub_", "addcdiv_", "addcmul_", "set_", "copy_"})
SAVED_WEIGHTS = pattern(r"state|dict|(^|\W)sd\b|shadow|backup|saved", re.I)
"""Names of what holds weights that were there before."""
SUPER = Symbol("builtins.super")


@callee(Method)
def call_method(reader: Reader, method: Method, call: Call) -> Value:
    """`receiver.name(x)`, where the receiver is not an object of the user's class with such a method."""
    receiver, name, args = method.receiver, method.name, call.args
    if ".grad" in dotted(method.node) and (name == "zero_" or (name in ("fill_", "mul_") and args == (Const(0),))):
        reader.write(ZeroGrad(place=reader.place(call.node)))
        return UNKNOWN
    if name == "manual_backward" and args:
        reader.write(Backward(place=reader.place(call.node)), args[0])
        return Const(None)
    if name in GRADIENT_HOOKS:
        if not all(isinstance(hook, UserFunction) and not ability_of(hook) for hook in call.values):
            # The hook may step and clear at every backward, and may reach any optimizer.
            reader.facts.escaped.update(id(made.optimizer) for made in reader.facts.optimizers)
        return UNKNOWN
    if receiver == SUPER:
        return _super_method(reader, name, args)
    if isinstance(receiver, Tensor):
        return _tensor_method(reader, receiver, name, call)
    if isinstance(receiver, Group):
        return _list_method(reader, receiver, name, args)
    if isinstance(receiver, Instance):
        return _object_method(reader, receiver, method, call)
    if isinstance(receiver, Parameters):
        return receiver
    if isinstance(receiver, Param):
        return _parameter_method(reader, receiver, name, call)
    return unknown_method(reader, method, call)


def _parameter_method(reader: Reader, parameter: Param, name: str, call: Call) -> Value:
    if name == "requires_grad_":
        reader.set_trainable(parameter, call.args[0] if call.args else Const(True), call.node)
    elif name in STEPS_BY_HAND and _is_given_weights(reader, parameter, call):
        pass  # `target.copy_(p)` applies no gradient, and neither does `p.clamp_(-1, 1)`.
    elif name in STEPS_BY_HAND or (name.endswith("_") and "grad" in ast.unparse(call.node)):
        reader.hide(call.node, (parameter.owner,), Ability.STEP, anywhere=False)
    return UNKNOWN


def _is_given_weights(reader: Reader, parameter: Param, call: Call) -> bool:
    """Is it given the parameter of another model, a mixture of the two, or what a state dict holds?"""
    if isinstance(call.first, Param):
        return call.first.owner is not parameter.owner
    given = call.node.args[0] if call.node.args else None
    if isinstance(given, ast.Subscript):
        return SAVED_WEIGHTS.search(ast.unparse(given.value)) is not None
    parts = list(parts_of(given)) if given is not None else []
    if any(isinstance(part, ast.Attribute) and part.attr == "grad" for part in parts):
        return False
    named = [reader.evaluate(part) for part in parts if isinstance(part, ast.Name)]
    return any(isinstance(value, Param) and value is not parameter for value in named)


def _super_method(reader: Reader, name: str, args: tuple[Value, ...]) -> Value:
    """`super().__init__(layers...)` of a class derived from a container of torch."""
    owner, cls = reader.frame.owner, reader.frame.defined_in
    bases = cls.bases if cls is not None and name == "__init__" else ()
    if owner is not None and any(isinstance(base, Symbol) and base.last in knowledge.CONTAINERS for base in bases):
        _add_children(owner, args)
    return UNKNOWN


def _tensor_method(reader: Reader, tensor: Tensor, name: str, call: Call) -> Value:
    if name == "backward":
        reader.write(Backward(place=reader.place(call.node)), tensor)
        return Const(None)
    if name == "requires_grad_":
        reader.set_trainable(tensor, call.args[0] if call.args else Const(True), call.node)
    # `labels.to(device)` has the values of labels on any device.
    others = () if name in knowledge.SAME_VALUES else call.values
    cut = knowledge.CUTS.get(name, "")
    return reader.tensor(name, (tensor, *others), call.node, cut, args=call.args, options=call.kwargs)


def _list_method(reader: Reader, group: Group, name: str, args: tuple[Value, ...]) -> Value:
    if name in ("append", "add", "insert") and args:
        group.extend([reader.if_reached(args[-1])])
        group.complete = False
    elif name in ("extend", "update") and args:
        for option in alternatives(args[0]):
            added = list(option.items) if isinstance(option, Group) and option is not group else [UNKNOWN]
            group.extend(map(reader.if_reached, added))
        group.complete = False
    elif name == "pop" and group.items and group.keys is None and not args:
        last = group.items.pop()
        if reader.frame.branches:
            group.items.append(reader.if_reached(last))
        return last
    elif name == "items":
        return Group([Group([UNKNOWN, item]) for item in group.items], complete=False)
    elif name == "values":
        return Group(group.items, group.complete)
    elif name in ("pop", "get") and group.items:
        key = args[0] if args else UNKNOWN
        if group.keys is not None and isinstance(key, Const):
            return group.items[group.keys.index(key.value)] if key.value in group.keys else UNKNOWN
        return each(Group(group.items))
    return UNKNOWN


def _object_method(reader: Reader, receiver: Instance, method: Method, call: Call) -> Value:
    name, args = method.name, call.args
    if knowledge.is_optimizer(receiver):
        result = optimizer_method(reader, receiver, name, call)
        if result is not None:
            return result
    if knowledge.is_scheduler(receiver):
        return scheduler_method(reader, receiver, name, call)
    if knowledge.is_scaler(receiver):
        return scaler_method(reader, receiver, name, call)
    if knowledge.is_module(receiver):
        return _module_method(reader, receiver, name, call)
    if receiver.last not in knowledge.FRAMEWORKS:
        return unknown_method(reader, method, call)
    # Accelerate and Fabric wrap objects and run backward, and may skip steps on purpose.
    if name in ("prepare", "setup", "setup_module", "setup_dataloaders", "setup_optimizers"):
        return args[0] if len(args) == 1 else Group(list(args))
    if name == "backward":
        reader.write(Backward(place=reader.place(call.node)), call.first)
        reader.hide(call.node, args, Ability.RESCALE)
    elif name.startswith("clip_grad"):
        reader.write(Clip(place=reader.place(call.node)), subject=call.first)
    return UNKNOWN


def _module_method(reader: Reader, module: Instance, name: str, call: Call) -> Value:
    args, label = call.args, module.label or module.last
    if name == "parameters":
        return Parameters(module)
    if name == "named_parameters":
        return Group([Group([UNKNOWN, Param(module)])], complete=False)
    if name == "zero_grad":
        reader.write(ZeroGrad(model=label, place=reader.place(call.node)), subject=module)
    elif name in ("train", "eval"):
        flag = call.argument(0, "mode", Const(True))
        training = name == "train" and not (isinstance(flag, Const) and flag.value is False)
        reader.write(ModeChange(model=label, training=training, place=reader.place(call.node)), subject=module)
    elif name == "requires_grad_":
        reader.set_trainable(module, args[0] if args else Const(True), call.node)
    elif name == "apply" and args and isinstance(args[0], UserFunction):
        call_function(reader, args[0], (module,), {})
    elif name == "load_state_dict":
        reader.facts.loaded.add(id(module))
    elif name in ("add_module", "register_module", "append", "extend", "insert"):
        _add_children(module, args[-1:])
    elif name == "forward":
        return reader.call(module, call)
    elif name == "optimizers" and knowledge.is_lightning(module):
        return lightning_optimizers(reader, module)
    return module if name in RETURNS_ITSELF else UNKNOWN


def _add_children(module: Instance, children: tuple[Value, ...]) -> None:
    for value in children:
        for child in value.items if isinstance(value, Group) else [value]:
            module.items.append(child)
            adopt(module, child)
