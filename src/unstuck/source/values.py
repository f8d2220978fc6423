"""What a value in a script can be known to be, without running it.

The reader of a script computes with these instead of tensors. A `Tensor` remembers the operation that made it and
what went in, so that a rule can ask where a value came from. Whatever is not understood is `UNKNOWN`, and rules stay
silent about it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Place

if TYPE_CHECKING:
    from unstuck.source.reader.scope import Scope

MANY_OPTIONS = 6
MOST_ITEMS = 10_000
"""Of a list: forty lines of `a += a` would fill any memory."""


class Value:
    """Base of everything a name can be bound to."""

    __slots__ = ()


class Unknown(Value):
    """Anything at all."""

    __slots__ = ()


UNKNOWN = Unknown()


class Symbol(Value, msgspec.Struct, frozen=True):
    """A name from another library, by its full dotted path, such as `torch.nn.functional.softmax`."""

    name: str

    @property
    def last(self) -> str:
        """The part after the last dot."""
        return self.name.rpartition(".")[2]


class Const(Value, msgspec.Struct, frozen=True):
    """A literal."""

    value: object


class Tensor(Value, msgspec.Struct, eq=False):
    """The result of `op` on `inputs`. `cut` says why no gradient can flow back through it, or is empty."""

    op: str
    inputs: tuple[Value, ...] = ()
    place: Place | None = None
    cut: str = ""
    cut_place: Place | None = None
    module: Instance | None = None
    """The module that was called, when the operation is a module."""
    leaf: bool = False
    """Made with `requires_grad=True`: something to train."""
    node: ast.AST | None = None
    """The expression that made it, in the file of `place`."""
    args: tuple[Value, ...] = ()
    """Arguments by position, without the tensor itself."""
    options: dict[str, Value] = msgspec.field(default_factory=dict)
    """Arguments by keyword."""


class Instance(Value, msgspec.Struct, eq=False):
    """An object made by calling a class: a layer, an optimizer, a user's own class."""

    kind: str
    """Dotted name of the class; the plain name of a user's own class."""
    place: Place | None = None
    cls: UserClass | None = None
    args: tuple[Value, ...] = ()
    kwargs: dict[str, Value] = msgspec.field(default_factory=dict)
    attrs: dict[str, Value] = msgspec.field(default_factory=dict)
    items: list[Value] = msgspec.field(default_factory=list)
    """Children of a container such as Sequential."""
    parent: Instance | None = None
    label: str = ""
    """The name the user gave it."""
    fresh: bool = True
    """Made here with new weights; False for a part of something loaded from elsewhere."""
    is_part: bool = False
    """An attribute of a model from elsewhere, whose class is unknown; its `kind` says of which."""
    holds: list[Value] = msgspec.field(default_factory=list)
    """What its methods were given, where they could not be read."""

    @property
    def last(self) -> str:
        """The class name alone."""
        return self.kind.rpartition(".")[2]


class UserClass(Value, msgspec.Struct, eq=False):
    """A class of the user's, with the scope it was written in."""

    node: ast.ClassDef
    scope: Scope
    bases: tuple[Value, ...]
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef]
    assigned: dict[str, Value] = msgspec.field(default_factory=dict)


class UserFunction(Value, msgspec.Struct, eq=False):
    """A function or method of the user's; `owner` is the bound object."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    owner: Instance | None = None
    defined_in: UserClass | None = None


class Method(Value, msgspec.Struct, eq=False):
    """A method of an object whose source is not the user's: `optimizer.step`, `loss.backward`."""

    receiver: Value
    name: str
    node: ast.Attribute


class Parameters(Value, msgspec.Struct, eq=False):
    """`module.parameters()` and what is made of it."""

    owner: Value
    only_trainable: bool = False
    """Filtered by `requires_grad`."""
    partial: bool = False
    """Filtered by something else, so some may be missing."""


class Param(Value, msgspec.Struct, eq=False):
    """One parameter out of `owner`'s."""

    owner: Value


class Group(Value, msgspec.Struct, eq=False):
    """A list, tuple, set or dict whose members are (some of) `items`."""

    items: list[Value]
    complete: bool = True
    """No member is missing from `items`."""
    keys: list[object] | None = None
    place: Place | None = None

    def __post_init__(self) -> None:
        if len(self.items) > MOST_ITEMS:
            self.items, self.keys, self.complete = self.items[:MOST_ITEMS], None, False

    def extend(self, items: Iterable[Value]) -> None:
        """Add members, as many as MOST_ITEMS allows; they may be its own."""
        added = list(items)
        room = max(MOST_ITEMS - len(self.items), 0)
        self.items.extend(added[:room])
        self.complete = self.complete and len(added) <= room


class Choice(Value, msgspec.Struct, frozen=True):
    """One of several values, depending on a branch."""

    options: tuple[Value, ...]


def lineage(cls: UserClass) -> Iterator[Value]:
    """The class and its known bases, each once and the nearest first."""
    waiting: list[Value] = [cls]
    seen: set[int] = set()
    while waiting:
        base = waiting.pop(0)
        if id(base) not in seen:
            seen.add(id(base))
            yield base
            if isinstance(base, UserClass):
                waiting[:0] = [option for value in base.bases for option in alternatives(value)]


def find_method(cls: UserClass, name: str) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, UserClass] | None:
    """The method `name` of a class or of the nearest base that the user wrote, and the class that defines it."""
    for base in lineage(cls):
        if isinstance(base, UserClass) and name in base.methods:
            return base.methods[name], base
    return None


def bound_method(cls: UserClass, name: str, owner: Instance | None) -> UserFunction | None:
    """The method `name` of a class, bound to an object."""
    found = find_method(cls, name)
    return UserFunction(found[0], found[1].scope, owner, found[1]) if found else None


def adopt(owner: Instance, child: Value) -> None:
    """Make `child` a part of `owner`, unless it has an owner or is an owner of `owner` itself."""
    if isinstance(child, Choice):
        for option in child.options:
            adopt(owner, option)
        return
    if not isinstance(child, Instance) or child.parent is not None:
        return
    above: Instance | None = owner
    while above is not None and above is not child:
        above = above.parent
    if above is None:
        child.parent = owner


def root(module: Instance) -> Instance:
    """The outermost module it is part of."""
    while module.parent is not None:
        module = module.parent
    return module


def join(one: Value, other: Value) -> Value:
    """A value that may be either."""
    if one is other or one == other:
        return one
    options = tuple(dict.fromkeys((*alternatives(one), *alternatives(other))))
    return Choice(options) if len(options) <= MANY_OPTIONS else UNKNOWN


def alternatives(value: Value) -> tuple[Value, ...]:
    """The values it may be."""
    return value.options if isinstance(value, Choice) else (value,)


def may_be_tensor(value: Value) -> bool:
    """Is it a tensor on some branch?"""
    return isinstance(value, Tensor) or (isinstance(value, Choice) and any(map(may_be_tensor, value.options)))


def members(value: Value) -> Iterator[Value]:
    """Every value reachable through lists, dicts and branches, itself included."""
    waiting = [value]
    seen: set[int] = set()
    while waiting:
        option = waiting.pop(0)
        if id(option) in seen:
            continue
        seen.add(id(option))
        if isinstance(option, Choice):
            waiting[:0] = option.options
        elif isinstance(option, Group):
            waiting[:0] = option.items
        else:
            yield option
