"""Reading assignments: names, attributes, items and gradients are bound, and sums that grow are noted."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from unstuck.events import ZeroGrad
from unstuck.source.facts import AttributeSet, ChildReplaced, Kept
from unstuck.source.reader import knowledge
from unstuck.source.reader.base import dotted
from unstuck.source.reader.calls import Calls
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
)


class Assignments(Calls):
    """The part of the reader that binds values to targets."""

    def _assignment(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)
            if isinstance(target, ast.Name):
                self._settle(target.id, node.value)
        if self.loops and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            name, sides = dotted(node.targets[0]), (dotted(node.value.left), dotted(node.value.right))
            if name and name in sides and isinstance(value, Tensor):
                self._keep(name, value.inputs[1 - sides.index(name)], value, node)

    def _settle(self, name: str, made: ast.expr) -> None:
        """A name made straight from the parameters is as settled as they are; a literal is a flag to be flipped."""
        settled = not self.frame.branches and not isinstance(made, ast.Constant) and self._is_settled(made)
        (self.frame.settled.add if settled else self.frame.settled.discard)(name)

    def _keep(self, name: str, value: Value, result: Value, node: ast.AugAssign | ast.Assign) -> None:
        """A running sum over the turns of a loop took in one more tensor."""
        recording = self.grad_off is None
        self.facts.kept.append(Kept(name, value, result, self.place(node), node, tuple(self.loops), recording))

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        old, new = self.evaluate(node.target), self.evaluate(node.value)
        if dotted(node.target).endswith(".grad"):
            if isinstance(node.op, ast.Mult) and new == Const(0):
                self.happen(ZeroGrad(place=self.place(node)))
            return
        if isinstance(old, Param) or any(getattr(part, "attr", "") == "grad" for part in ast.walk(node.value)):
            self.hide(node, iter((old,)))
        if isinstance(old, Group):
            old.extend(map(self.if_reached, list(new.items)) if isinstance(new, Group) else [new])
            return
        tensors = any(isinstance(option, Tensor) for value in (old, new) for option in alternatives(value))
        result = self.tensor(type(node.op).__name__.lower(), (old, new), node) if tensors else UNKNOWN
        self.assign(node.target, result)
        if tensors and self.loops and isinstance(node.op, ast.Add):
            self._keep(dotted(node.target) or ast.unparse(node.target), new, result, node)

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a name, attribute, item or tuple of these."""
        if isinstance(target, ast.Name):
            self.scope.names[target.id] = value
            _give_label(value, target.id)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Group([self.each(value)], complete=False))
        elif isinstance(target, ast.Attribute):
            self._assign_attribute(target, value)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)

    def _unpack(self, targets: Sequence[ast.expr], value: Value) -> None:
        fitting = [option for option in alternatives(value) if _fits(option, len(targets))]
        for position, target in enumerate(targets):
            part: Value | None = None
            # What does not fit the targets cannot be what is unpacked here.
            for option in fitting or alternatives(value):
                item = option.items[position] if fitting and isinstance(option, Group) else self._part(option, target)
                part = item if part is None else join(part, item)
            self.assign(target, part or UNKNOWN)

    def _part(self, value: Value, target: ast.expr) -> Value:
        if isinstance(value, Tensor):
            return self.tensor("part", (value,), target)
        return UNKNOWN

    def _assign_attribute(self, target: ast.Attribute, value: Value) -> None:
        owner = self.evaluate(target.value)
        self.facts.attributes.append(AttributeSet(owner, target.attr, value, self.place(target), target, self.tick()))
        if target.attr == "grad":
            self._assign_gradient(target, value)
        elif target.attr == "requires_grad" and not knowledge.is_module(owner):
            self.set_trainable(owner, value, target)
        elif target.attr == "data" and isinstance(owner, Param):
            self.hide(target, iter((owner.owner,)))
        for option in alternatives(owner):
            if isinstance(option, Instance):
                self._set_attribute(option, target, value)
            elif isinstance(option, Method) and isinstance(option.receiver, Instance):
                # `layer.weight.data = ...`: its weights are the user's own, not random ones to be trained.
                self.facts.escaped.add(id(option.receiver))

    def _assign_gradient(self, target: ast.expr, value: Value) -> None:
        """`p.grad = None`, zeros, or something else, of which we know nothing."""
        cleared = isinstance(value, Const) or (isinstance(value, Tensor) and value.op.startswith("zeros"))
        if cleared:
            self.happen(ZeroGrad(place=self.place(target)))
        else:
            self.hide(target, iter(()))

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "grad":
                self.happen(ZeroGrad(place=self.place(target)))

    def _set_attribute(self, owner: Instance, target: ast.Attribute, value: Value) -> None:
        name = target.attr
        if knowledge.is_module(owner):
            self._adopt(owner, name, value, target)
        old = owner.attrs.get(name)
        weak = self.branch_depth > 0 and old is not None and not isinstance(old, Const)
        owner.attrs[name] = join(old, value) if weak and old is not None else value
        _give_label(value, f"self.{name}" if owner is self.frame.owner else ast.unparse(target))

    def _adopt(self, owner: Instance, name: str, value: Value, target: ast.Attribute) -> None:
        for option in alternatives(value):
            adopt(owner, option)
        if isinstance(value, Group) and owner is self.frame.owner:
            self.facts.plain_lists.append((owner, name, value))
        held = any(knowledge.has_weights(option) for option in alternatives(owner.attrs.get(name, UNKNOWN)))
        building = self.frame.function == "__init__" or self.forward_depth > 0
        inside = owner is self.frame.owner and (building or not held)
        if not inside and any(knowledge.has_weights(option) for option in alternatives(value)):
            self.facts.replaced.append(ChildReplaced(owner, name, value, self.place(target), self.tick()))

    def _assign_item(self, target: ast.Subscript, value: Value) -> None:
        base = self.evaluate(target.value)
        if dotted(target.value).endswith(".grad"):
            self._assign_gradient(target, value)
        if isinstance(base, Group):
            base.extend([value])
            base.complete = False
        elif isinstance(base, Instance) and knowledge.is_module(base) and knowledge.has_weights(value):
            name = ast.unparse(target.slice)
            self.facts.replaced.append(ChildReplaced(base, name, value, self.place(target), self.tick()))
            base.items.append(value)


def _fits(value: Value, targets: int) -> bool:
    return isinstance(value, Group) and value.complete and len(value.items) == targets


def _give_label(value: Value, label: str) -> None:
    if isinstance(value, Instance) and not value.label:
        value.label = label
