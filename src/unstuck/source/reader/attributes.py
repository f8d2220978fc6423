"""Attributes: `model.fc`, `loss.data`, `torch.nn.Linear`, `super().forward`."""

from __future__ import annotations

import ast
from functools import reduce

from unstuck.source.reader import knowledge
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.reader import Reader, expression
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Instance,
    Method,
    Param,
    Symbol,
    Tensor,
    UserClass,
    Value,
    alternatives,
    bound_method,
    join,
)

LONGEST_NAME = 1000
"""Of a dotted name: `a = a.b` makes one longer each time."""
PLAIN_TENSOR_ATTRIBUTES = frozenset("shape dtype device ndim requires_grad grad grad_fn is_cuda".split())
VALUES_AND_INDICES = frozenset("max min sort topk median kthvalue cummax cummin".split())
"""Operations that return a pair, whose first part is called `values`."""
MODULE_METHODS = frozenset(
    "parameters named_parameters train eval to cuda cpu zero_grad state_dict modules load_state_dict requires_grad_ "
    "children named_modules named_children half float double apply add_module register_buffer register_forward_hook "
    "forward buffers".split()
)


@expression(ast.Attribute)
def attribute(reader: Reader, node: ast.Attribute) -> Value:
    """`base.name`, where `base` may be one of several values."""
    if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
        return _of_super(reader, node)
    base = reader.evaluate(node.value)
    if not isinstance(base, Choice):
        return _of(reader, base, node)
    return reduce(join, [_of(reader, option, node) for option in base.options])


def _of(reader: Reader, base: Value, node: ast.Attribute) -> Value:
    name = node.attr
    if isinstance(base, Symbol):
        return reader.resolve(Symbol(f"{base.name}.{name}")) if len(base.name) < LONGEST_NAME else UNKNOWN
    if isinstance(base, Instance):
        return _of_instance(reader, base, node)
    if isinstance(base, UserClass):
        method = bound_method(base, name, None)
        reader.attributes_read += method is None
        return method or base.assigned.get(name, UNKNOWN)
    if isinstance(base, Tensor):
        if name in ("data", "T", "mT"):
            return reader.tensor(name, (base,), node, knowledge.CUTS.get(name, ""))
        if name == "values" and base.op in VALUES_AND_INDICES:
            return reader.tensor("getitem", (base,), node)
        if name in PLAIN_TENSOR_ATTRIBUTES:
            return UNKNOWN
    if isinstance(base, Param) and name in ("data", "grad"):
        return base if name == "data" else UNKNOWN
    return Method(base, name, node)


def _of_instance(reader: Reader, base: Instance, node: ast.Attribute) -> Value:
    name = node.attr
    if name in base.attrs:
        reader.attributes_read += 1
        return base.attrs[name]
    if base.cls is not None:
        method = bound_method(base.cls, name, base)
        if method:
            decorators = getattr(method.node, "decorator_list", ())
            is_property = any(isinstance(item, ast.Name) and item.id == "property" for item in decorators)
            return call_function(reader, method, (), {}) if is_property else method
        reader.attributes_read += 1
        if name in base.cls.assigned:
            return base.cls.assigned[name]
    if name == "module" and knowledge.is_module(base):
        return base  # DataParallel and the like are read as the model they wrap.
    if (base.is_part or base.kind.startswith("torchvision.models.")) and name not in MODULE_METHODS:
        child = Instance(
            f"part of {base.label or base.last}", base.place, parent=base, fresh=False, label=name, is_part=True
        )
        base.attrs[name] = child
        return child
    return Method(base, name, node)


def _of_super(reader: Reader, node: ast.Attribute) -> Value:
    owner, current = reader.frame.owner, reader.frame.defined_in
    if owner is None or current is None:
        return UNKNOWN
    for base in current.bases:
        for option in alternatives(base):
            method = bound_method(option, node.attr, owner) if isinstance(option, UserClass) else None
            if method:
                return method
    return Method(Symbol("builtins.super"), node.attr, node)
