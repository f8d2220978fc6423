"""Reading expressions: from syntax to abstract values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import ClassVar

from unstuck.source.reader import knowledge
from unstuck.source.reader.base import ReaderState
from unstuck.source.trace import Block, Branch, condition_key
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Const,
    Group,
    Instance,
    Method,
    Param,
    Parameters,
    Symbol,
    Tensor,
    UserClass,
    UserFunction,
    Value,
    alternatives,
    join,
    lineage,
)

PLAIN_TENSOR_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "requires_grad", "grad_fn", "is_cuda"})

LONGEST_NAME = 1000
"""Of a dotted name: `a = a.b` makes one longer each time."""
VALUES_AND_INDICES = frozenset({"max", "min", "sort", "topk", "median", "kthvalue", "cummax", "cummin"})
"""Operations that return a pair, whose first part is called `values`."""


class Expressions(ReaderState):
    """The part of the reader that evaluates expressions."""

    def evaluate(self, node: ast.expr) -> Value:
        """What an expression is known to be."""
        read = self._readers.get(type(node))
        return read(self, node) if read else self._children(node)

    def call(self, node: ast.Call) -> Value:
        """The result of a call."""
        raise NotImplementedError

    def call_function(self, function: UserFunction, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """The result of a function of the user's."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a target."""
        raise NotImplementedError

    def each(self, value: Value, target: ast.expr | None = None) -> Value:
        """One member of something that is iterated over."""
        raise NotImplementedError

    def _children(self, node: ast.expr) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Value:
        return Const(node.value)

    def _name(self, node: ast.Name) -> Value:
        return self.resolve(self.scope.get(node.id))

    def resolve(self, value: Value) -> Value:
        """Follow an imported name into the user's own modules."""
        if not isinstance(value, Symbol) or value.name.startswith(("torch.", "builtins.")):
            return value
        assert self.frame.source is not None
        key = (value.name, self.frame.source.path)
        if key not in self._resolved:
            self._resolved[key] = self.project.resolve(value, key[1])
        return self._resolved[key]

    def _attribute(self, node: ast.Attribute) -> Value:
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
            return self._of_super(node)
        base = self.evaluate(node.value)
        if not isinstance(base, Choice):
            return self.attribute(base, node)
        result: Value | None = None
        for option in base.options:
            value = self.attribute(option, node)
            result = value if result is None else join(result, value)
        return result or UNKNOWN

    def attribute(self, base: Value, node: ast.Attribute) -> Value:
        """What `base.name` is."""
        name = node.attr
        if isinstance(base, Symbol):
            return self.resolve(Symbol(f"{base.name}.{name}")) if len(base.name) < LONGEST_NAME else UNKNOWN
        if isinstance(base, Instance):
            return self._of_instance(base, node)
        if isinstance(base, UserClass):
            method = find_method(base, name)
            return (
                UserFunction(method[0], method[1].scope, None, method[1])
                if method
                else base.assigned.get(name, UNKNOWN)
            )
        if isinstance(base, Tensor):
            if name in ("data", "T", "mT"):
                return self.tensor(name, (base,), node, knowledge.CUTS.get(name, ""))
            if name == "values" and base.op in VALUES_AND_INDICES:
                return self.tensor("getitem", (base,), node)
            if name in PLAIN_TENSOR_ATTRIBUTES or name == "grad":
                return UNKNOWN
        if isinstance(base, Param) and name in ("data", "grad"):
            return UNKNOWN
        return Method(base, name, node)

    def _of_instance(self, base: Instance, node: ast.Attribute) -> Value:
        name = node.attr
        if name in base.attrs:
            return base.attrs[name]
        if base.cls is not None:
            method = find_method(base.cls, name)
            if method:
                function = UserFunction(method[0], method[1].scope, base, method[1])
                is_property = any(
                    isinstance(item, ast.Name) and item.id == "property" for item in method[0].decorator_list
                )
                return self.call_function(function, (), {}) if is_property else function
            if name in base.cls.assigned:
                return base.cls.assigned[name]
        if name == "module" and knowledge.is_module(base):
            return base  # DataParallel and its kin are read as the model they wrap.
        if base.kind.startswith(("torchvision.models.", "part of ")) and not _is_module_method(name):
            child = Instance(f"part of {base.label or base.last}", base.place, parent=base, fresh=False, label=name)
            base.attrs[name] = child
            return child
        return Method(base, name, node)

    def _of_super(self, node: ast.Attribute) -> Value:
        owner, current = self.frame.owner, self.frame.defined_in
        if owner is None or current is None:
            return UNKNOWN
        for base in current.bases:
            for option in alternatives(base):
                found = find_method(option, node.attr) if isinstance(option, UserClass) else None
                if found:
                    return UserFunction(found[0], found[1].scope, owner, found[1])
        return Method(Symbol("builtins.super"), node.attr, node)

    def _arithmetic(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        lists = isinstance(left, Group | Parameters) and isinstance(right, Group | Parameters)
        if lists and isinstance(node.op, ast.Add):
            return _concatenated(left, right)
        if _may_be_tensor(left) or _may_be_tensor(right):
            return self.tensor(type(node.op).__name__.lower(), (left, right), node)
        return UNKNOWN

    def _unary(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.value, int | float):
            return Const(-value.value)
        return self.tensor("neg", (value,), node) if _may_be_tensor(value) else UNKNOWN

    def _compare(self, node: ast.Compare) -> Value:
        values = tuple(self.evaluate(part) for part in (node.left, *node.comparators))
        if any(_may_be_tensor(value) for value in values):
            return self.tensor("compare", values, node, "a comparison")
        if values[1:] == (Const(None),) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            return _is_none(values[0], wanted=isinstance(node.ops[0], ast.Is))
        return UNKNOWN

    def _conditional(self, node: ast.IfExp) -> Value:
        known = self.known(node.test)
        if known is not None:
            return self.evaluate(node.body if known else node.orelse)
        then, other = self._way(node.body), self._way(node.orelse)
        if then[1] or other[1]:
            condition, negated = condition_key(node.test)
            ways = (other[1], then[1]) if negated else (then[1], other[1])
            self.block.append(Branch(condition, self._varies(node.test), *ways))
        return join(then[0], other[0])

    def _way(self, node: ast.expr) -> tuple[Value, Block]:
        """One side of `a if c else b`, with what happens only there."""
        outer, self.block = self.block, []
        try:
            return self.evaluate(node), self.block
        finally:
            self.block = outer

    def known(self, test: ast.expr) -> bool | None:
        """Which way a condition certainly goes in this call, if that can be said."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.known(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            parts = [self.known(part) for part in test.values]
            decisive = isinstance(test.op, ast.Or)
            return decisive if decisive in parts else None if None in parts else not decisive
        value = self.evaluate(test)
        return bool(value.value) if isinstance(value, Const) and self._is_settled(test) else None

    def _is_settled(self, test: ast.expr) -> bool:
        """Is a condition that is constant now constant for good?"""
        raise NotImplementedError

    def _varies(self, test: ast.expr) -> bool:
        """May a condition change from one turn of a loop to the next?"""
        raise NotImplementedError

    def _either(self, node: ast.BoolOp) -> Value:
        result = self.evaluate(node.values[0])
        for part in node.values[1:]:
            result = join(result, self.evaluate(part))
        return result

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self.evaluate(node.value), self.evaluate(node.slice)
        results = [self._item(option, index, node) for option in alternatives(base)]
        joined = results[0]
        for result in results[1:]:
            joined = join(joined, result)
        return joined

    def _item(self, base: Value, index: Value, node: ast.Subscript) -> Value:
        if isinstance(base, Tensor):
            return self.tensor("getitem", (base,), node)
        if isinstance(base, Parameters):
            return Parameters(base.owner, base.only_trainable, partial=True)
        key = index.value if isinstance(index, Const) else None
        if isinstance(base, Group):
            if base.keys is not None:
                return base.items[base.keys.index(key)] if key in base.keys else UNKNOWN
            if isinstance(key, int) and base.complete and -len(base.items) <= key < len(base.items):
                return base.items[key]
        if (
            isinstance(base, Instance)
            and base.items
            and isinstance(key, int)
            and -len(base.items) <= key < len(base.items)
        ):
            return base.items[key]
        if isinstance(base, Instance) and base.kind.startswith("part of "):
            return Instance(base.kind, base.place, parent=base, fresh=False, label=str(key))
        return UNKNOWN

    def _collection(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        items: list[Value] = []
        complete = True
        for element in node.elts:
            if not isinstance(element, ast.Starred):
                items.append(self.evaluate(element))
                continue
            inner = self.evaluate(element.value)
            items.extend(inner.items if isinstance(inner, Group) else [self.each(inner)])
            complete = complete and isinstance(inner, Group) and inner.complete
        return Group(items, complete, place=self.place(node), is_tuple=isinstance(node, ast.Tuple))

    def _dict(self, node: ast.Dict) -> Value:
        keys = [self.evaluate(key) if key else UNKNOWN for key in node.keys]
        items = [self.evaluate(value) for value in node.values]
        plain = all(isinstance(key, Const) for key in keys)
        names = [key.value for key in keys if isinstance(key, Const)] if plain else None
        return Group(items, plain, keys=names, place=self.place(node))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        conditions = self._bind_generators(node.generators)
        element = self.evaluate(node.elt)
        if isinstance(element, Param):
            only_trainable = bool(conditions) and all("requires_grad" in text for text in conditions)
            return Parameters(element.owner, only_trainable, bool(conditions) and not only_trainable)
        if isinstance(element, Group) and element.is_tuple and len(element.items) == 2:
            return Group([element], complete=False, place=self.place(node))
        return Group([element], complete=False, place=self.place(node))

    def _dict_comprehension(self, node: ast.DictComp) -> Value:
        self._bind_generators(node.generators)
        self.evaluate(node.key)
        return Group([self.evaluate(node.value)], complete=False, place=self.place(node))

    def _bind_generators(self, generators: list[ast.comprehension]) -> list[str]:
        conditions: list[str] = []
        for generator in generators:
            self.assign(generator.target, self.each(self.evaluate(generator.iter), generator.target))
            conditions.extend(ast.unparse(test) for test in generator.ifs)
        return conditions

    def _lambda(self, node: ast.Lambda) -> Value:
        return UserFunction(node, self.scope)

    def _walrus(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _yield(self, node: ast.Yield) -> Value:
        if node.value is not None:
            self.frame.yielded.append(self.evaluate(node.value))
        return UNKNOWN

    def _inner(self, node: ast.Await | ast.Starred | ast.YieldFrom) -> Value:
        return self.evaluate(node.value)

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)

    _readers: ClassVar[dict[type[ast.expr], Callable[..., Value]]] = {
        ast.Constant: _constant,
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Call: _call,
        ast.BinOp: _arithmetic,
        ast.UnaryOp: _unary,
        ast.Compare: _compare,
        ast.IfExp: _conditional,
        ast.BoolOp: _either,
        ast.Subscript: _subscript,
        ast.List: _collection,
        ast.Tuple: _collection,
        ast.Set: _collection,
        ast.Dict: _dict,
        ast.ListComp: _comprehension,
        ast.SetComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.DictComp: _dict_comprehension,
        ast.Lambda: _lambda,
        ast.NamedExpr: _walrus,
        ast.Yield: _yield,
        ast.Await: _inner,
        ast.Starred: _inner,
        ast.YieldFrom: _inner,
    }


def find_method(cls: UserClass, name: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, UserClass] | None:
    """The method `name` of a class or of the nearest base that the user wrote."""
    for base in lineage(cls):
        if isinstance(base, UserClass) and name in base.methods:
            return base.methods[name], base
    return None


def _concatenated(left: Value, right: Value) -> Group:
    """`list(a.parameters()) + [b]`."""
    sides = [side if isinstance(side, Group) else Group([side]) for side in (left, right)]
    items = [item for side in sides for item in side.items]
    return Group(items, all(side.complete for side in sides), place=sides[0].place)


def _is_none(value: Value, *, wanted: bool) -> Value:
    """What `value is None` says, when that is known."""
    if isinstance(value, Const):
        return Const((value.value is None) == wanted)
    return Const(not wanted) if isinstance(value, Instance | UserClass | UserFunction) else UNKNOWN


def _may_be_tensor(value: Value) -> bool:
    return any(isinstance(option, Tensor) for option in alternatives(value))


def _is_module_method(name: str) -> bool:
    return name in {
        "parameters", "named_parameters", "train", "eval", "to", "cuda", "cpu", "zero_grad", "state_dict", "modules",
        "load_state_dict", "requires_grad_", "children", "named_modules", "named_children", "half", "float", "double",
        "apply", "add_module", "register_buffer", "register_forward_hook", "forward", "buffers",
    }  # fmt: skip
