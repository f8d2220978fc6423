"""Assignments: `=`, `+=`, `:=` and `del` bind names, attributes, items and gradients; running sums are noted."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import reduce

from unstuck.events import ZeroGrad
from unstuck.source.facts import AttributeSet, ChildReplaced, RunningSum
from unstuck.source.nodes import parts_of
from unstuck.source.reader import knowledge
from unstuck.source.reader.branches import is_settled
from unstuck.source.reader.iteration import collection_name, each
from unstuck.source.reader.reader import Reader, expression, statement
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Ability
from unstuck.source.values import (
    UNKNOWN,
    Const,
    Group,
    Instance,
    Method,
    Param,
    Tensor,
    Value,
    adopt,
    alternatives,
    join,
    may_be_tensor,
)


@statement(ast.Assign)
def assignment(reader: Reader, node: ast.Assign) -> None:
    """`a = b = value`."""
    value = reader.evaluate(node.value)
    for target in node.targets:
        assign(reader, target, value)
        if isinstance(target, ast.Name):
            # A name made directly from the parameters is as settled as they are; a literal may be a flag that changes.
            frame = reader.frame
            literal = isinstance(node.value, ast.Constant)
            settled = not frame.branches and not literal and is_settled(reader, node.value)
            (frame.settled.add if settled else frame.settled.discard)(target.id)
    if reader.loops and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        name, sides = dotted(node.targets[0]), (dotted(node.value.left), dotted(node.value.right))
        if name and name in sides and isinstance(value, Tensor):
            _note_running_sum(reader, name, value.inputs[1 - sides.index(name)], value, node)


@statement(ast.AnnAssign)
def annotated(reader: Reader, node: ast.AnnAssign) -> None:
    """`a: int = value`."""
    if node.value is not None:
        assign(reader, node.target, reader.evaluate(node.value))


@statement(ast.AugAssign)
def augmented(reader: Reader, node: ast.AugAssign) -> None:
    """`a += value`."""
    old, new = reader.evaluate(node.target), reader.evaluate(node.value)
    if dotted(node.target).endswith(".grad"):
        if isinstance(node.op, ast.Mult) and new == Const(0):
            reader.write(ZeroGrad(place=reader.place(node)))
        return
    if isinstance(old, Param) or any(getattr(part, "attr", "") == "grad" for part in parts_of(node.value)):
        reader.hide(node, (old,), Ability.STEP)
    if isinstance(old, Group):
        old.extend(map(reader.if_reached, list(new.items)) if isinstance(new, Group) else [new])
        return
    tensors = may_be_tensor(old) or may_be_tensor(new)
    result = reader.tensor(type(node.op).__name__.lower(), (old, new), node) if tensors else UNKNOWN
    assign(reader, node.target, result)
    if tensors and reader.loops and isinstance(node.op, ast.Add):
        _note_running_sum(reader, dotted(node.target) or ast.unparse(node.target), new, result, node)


def _note_running_sum(reader: Reader, name: str, value: Value, result: Value, node: ast.AugAssign | ast.Assign) -> None:
    loops, recording = tuple(reader.loops), reader.grad_off is None
    reader.facts.running_sums.append(RunningSum(name, value, result, reader.place(node), node, loops, recording))


@statement(ast.Delete)
def delete(reader: Reader, node: ast.Delete) -> None:
    """`del p.grad`."""
    for target in node.targets:
        if isinstance(target, ast.Attribute) and target.attr == "grad":
            reader.write(ZeroGrad(place=reader.place(target)))


@expression(ast.NamedExpr)
def walrus(reader: Reader, node: ast.NamedExpr) -> Value:
    """`(a := value)`."""
    value = reader.evaluate(node.value)
    assign(reader, node.target, value)
    return value


def assign(reader: Reader, target: ast.expr, value: Value) -> None:
    """Bind a name, attribute, item or tuple of these."""
    if isinstance(target, ast.Name):
        reader.frame.scope.names[target.id] = value
        reader.frame.member_of.pop(target.id, None)
        _give_label(value, target.id)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(reader, target.elts, value)
    elif isinstance(target, ast.Starred):
        assign(reader, target.value, Group([each(value)], complete=False))
    elif isinstance(target, ast.Attribute):
        _assign_attribute(reader, target, value)
    elif isinstance(target, ast.Subscript):
        _assign_item(reader, target, value)


def assign_member(reader: Reader, target: ast.expr, iterated: Value, node: ast.expr) -> None:
    """Bind the target of a `for` to a member of what `node` names: `opt` of `for opt in self.optimizers`."""
    assign(reader, target, each(iterated, target))
    last = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    if isinstance(last, ast.Name):
        reader.frame.member_of[last.id] = collection_name(node)


def _give_label(value: Value, label: str) -> None:
    if isinstance(value, Instance) and not value.label:
        value.label = label


def _unpack(reader: Reader, targets: Sequence[ast.expr], value: Value) -> None:
    # An option with another number of members cannot be the one that is unpacked here.
    fitting = [
        option
        for option in alternatives(value)
        if isinstance(option, Group) and option.complete and len(option.items) == len(targets)
    ]
    for position, target in enumerate(targets):
        if fitting:
            parts = [option.items[position] for option in fitting]
        else:
            parts = [
                reader.tensor("part", (option,), target) if isinstance(option, Tensor) else UNKNOWN
                for option in alternatives(value)
            ]
        assign(reader, target, reduce(join, parts))


def _assign_attribute(reader: Reader, target: ast.Attribute, value: Value) -> None:
    owner = reader.evaluate(target.value)
    reader.facts.attributes.append(AttributeSet(owner, target.attr, value, reader.place(target), target, reader.tick()))
    if target.attr == "grad" and not (isinstance(owner, Instance) and owner.cls is not None):
        _assign_gradient(reader, target, value)
    elif target.attr == "requires_grad" and not knowledge.is_module(owner):
        reader.set_trainable(owner, value, target)
    elif target.attr == "data" and isinstance(owner, Param):
        reader.hide(target, (owner.owner,), Ability.STEP, anywhere=False)
    for option in alternatives(owner):
        if isinstance(option, Instance):
            _set_attribute(reader, option, target, value)
        elif isinstance(option, Method) and isinstance(option.receiver, Instance):
            # `layer.weight.data = ...`: these weights come from the user, they are not random ones to be trained.
            reader.facts.escaped.add(id(option.receiver))


def _assign_gradient(reader: Reader, target: ast.expr, value: Value) -> None:
    """`p.grad = None` or zeros clears it; nothing is known of another value."""
    if isinstance(value, Const) or (isinstance(value, Tensor) and value.op.startswith("zeros")):
        reader.write(ZeroGrad(place=reader.place(target)))
    else:
        reader.hide(target, (), Ability.CLEAR | Ability.RESCALE)


def _set_attribute(reader: Reader, owner: Instance, target: ast.Attribute, value: Value) -> None:
    name, frame = target.attr, reader.frame
    old = owner.attrs.get(name)
    if knowledge.is_module(owner):
        for option in alternatives(value):
            adopt(owner, option)
        if isinstance(value, Group) and owner is frame.owner:
            reader.facts.plain_lists.append((owner, name, value))
        had_weights = any(map(knowledge.has_weights, alternatives(old or UNKNOWN)))
        building = frame.function == "__init__" or reader.forward_depth > 0
        inside = owner is frame.owner and (building or not had_weights)
        if not inside and any(map(knowledge.has_weights, alternatives(value))):
            reader.facts.replaced.append(ChildReplaced(owner, name, value, reader.place(target), reader.tick()))
    # In a branch the old value may remain, unless it was only a placeholder such as None.
    may_remain = reader.branch_depth > 0 and old is not None and not isinstance(old, Const)
    owner.attrs[name] = join(old, value) if may_remain and old is not None else value
    _give_label(value, f"self.{name}" if owner is frame.owner else ast.unparse(target))


def _assign_item(reader: Reader, target: ast.Subscript, value: Value) -> None:
    base = reader.evaluate(target.value)
    if dotted(target.value).endswith(".grad"):
        _assign_gradient(reader, target, value)
    if isinstance(base, Group):
        base.extend([value])
        base.complete = False
    elif isinstance(base, Instance) and knowledge.is_module(base) and knowledge.has_weights(value):
        name = ast.unparse(target.slice)
        reader.facts.replaced.append(ChildReplaced(base, name, value, reader.place(target), reader.tick()))
        base.items.append(value)
