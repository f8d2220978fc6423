"""The reader of a script: where it is, what it has found, and which handler reads which syntax.

A handler is a function that gets the reader and what it should read. The files of this folder define them and register
them with one of three decorators; the reader looks up the handler by type:

    @statement(ast.With)        reader.execute(statements)      does control reach the end?
    @expression(ast.Attribute)  reader.evaluate(node)           the value of an expression
    @callee(UserFunction)       reader.call(value, call)        the result of calling a value
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import msgspec

from unstuck.events import Backward, Event, LossCall, Place
from unstuck.source.facts import Facts, Frozen
from unstuck.source.flow import papers_over
from unstuck.source.reader import knowledge
from unstuck.source.reader.abilities import ability_of_text, reachable
from unstuck.source.reader.project import Project
from unstuck.source.reader.scope import Scope, SourceFile, dotted
from unstuck.source.trace import EVERYTHING, Ability, Block, Happened, Hidden, Inlined, Loop, says_something
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Const,
    Instance,
    Param,
    Symbol,
    Tensor,
    UserClass,
    UserFunction,
    Value,
    alternatives,
    join,
)

DEEPEST_CALL = 12
STATEMENTS_PER_LINE = 4
STATEMENTS_AT_LEAST = 1500
STATEMENTS_OF_A_LOOP = 8000
"""At least, where a backward pass is written: what its loop calls is read to the end."""
MOST_LAYERS = 50_000
"""Layers of Sequentials that data is sent through in one script."""

Handler = TypeVar("Handler", bound=Callable[..., Any])
_STATEMENTS: dict[type[ast.stmt], Callable[[Reader, Any], bool | None]] = {}
_EXPRESSIONS: dict[type[ast.expr], Callable[[Reader, Any], Value]] = {}
_CALLEES: dict[type[Value], Callable[[Reader, Any, Call], Value]] = {}


def statement(*kinds: type[ast.stmt]) -> Callable[[Handler], Handler]:
    """Register `handler(reader, node)` for these statements; it returns False when control does not reach the next."""
    return lambda handler: _register(_STATEMENTS, kinds, handler)


def expression(*kinds: type[ast.expr]) -> Callable[[Handler], Handler]:
    """Register `handler(reader, node)` for these expressions; it returns the value."""
    return lambda handler: _register(_EXPRESSIONS, kinds, handler)


def callee(*kinds: type[Value]) -> Callable[[Handler], Handler]:
    """Register `handler(reader, value, call)` for calls of such values; it returns the result."""
    return lambda handler: _register(_CALLEES, kinds, handler)


def _register(table: dict[Any, Any], kinds: Iterable[type], handler: Handler) -> Handler:
    table.update(dict.fromkeys(kinds, handler))
    return handler


class Call(msgspec.Struct, eq=False):
    """One call with the values of its arguments."""

    node: ast.Call
    args: tuple[Value, ...]
    kwargs: dict[str, Value]

    @property
    def first(self) -> Value:
        """The first argument given by position."""
        return self.args[0] if self.args else UNKNOWN

    @property
    def values(self) -> tuple[Value, ...]:
        """All arguments."""
        return (*self.args, *self.kwargs.values())

    def argument(self, position: int, name: str, default: Value = UNKNOWN) -> Value:
        """An argument given by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


class Frame(msgspec.Struct, eq=False):
    """One function being read."""

    scope: Scope
    function: str = ""
    owner: Instance | None = None
    defined_in: UserClass | None = None
    returned: list[Value] = msgspec.field(default_factory=list)
    yielded: list[Value] = msgspec.field(default_factory=list)
    parameters: frozenset[str] = frozenset()
    """Names of the function's parameters, which may differ from one call to the next."""
    settled: set[str] = msgspec.field(default_factory=set)
    """Local names that follow from the parameters: `training = optimizer is not None`."""
    loops: list[ast.AST] = msgspec.field(default_factory=list)
    """The loops being read, outermost first."""
    member_of: dict[str, str] = msgspec.field(default_factory=dict)
    """The collection over which a name goes: `v` of `for k, v in self.optimizers.items()`."""
    branches: int = 0
    """How many nested branches of this function are being read."""
    doubted: bool = False
    """A condition that other code may change decides whether control comes here."""
    source: SourceFile | None = None
    """The file its scope was written in."""

    def __post_init__(self) -> None:
        self.source = self.scope.source


class OuterName(msgspec.Struct, eq=False):
    """A name that a function took from around it."""

    scope: Scope
    """Where the function was written."""
    name: str
    bound: Value
    meant: Value
    """What it is bound to, in the module that it comes from."""


class Repeatable(msgspec.Struct, eq=False):
    """A call that need not be read a second time."""

    function: UserFunction
    """It is kept, so that no other can have the ids of what it belongs to."""
    value: Value
    outside: list[OuterName]
    """What it, and the functions that it called, took from around them."""


class Reader:
    """The state that all handlers share."""

    def __init__(self, scope: Scope, project: Project, *, follow_calls: bool = True) -> None:
        self.project = project
        self.facts = Facts()
        self.frame = Frame(scope)
        self.block: Block = self.facts.trace
        """Where events are written."""
        self.time = 0
        self.branch_depth = 0
        self.forward_depth = 0
        """How many nested `forward` methods and Sequentials are being read."""
        self.grad_off: Place | None = None
        """Where gradient recording was switched off, or None."""
        self.grad_unknown = False
        self.loops: list[Loop] = []
        """The loops being read, including those around the calls that led here."""
        self.call_stack: list[ast.AST] = []
        self.functions_read: set[ast.AST] = set()
        self.trusts_defaults = True
        """Functions are read because something calls them, so an omitted argument has its default."""
        self.discarded: ast.expr | None = None
        """The expression that is a whole statement, until it is read."""
        self.deepest_call = DEEPEST_CALL if follow_calls else 1
        # These two bound the time: it grows with the length of the file, not with its call graph or its networks.
        lines = scope.source.lines
        trains = follow_calls and any("backward(" in line for line in lines)
        self.statements_left = STATEMENTS_AT_LEAST + STATEMENTS_PER_LINE * len(lines)
        if trains:
            self.statements_left = max(self.statements_left, STATEMENTS_OF_A_LOOP)
        self.layers_left = MOST_LAYERS
        self.harmless: dict[tuple[Hashable, ...], Repeatable] = {}
        """Calls that did nothing that matters, and what they gave back (`calls/repeated.py`)."""
        self.outside: list[OuterName] = []
        """The names that functions took from around them, in the order in which they were read."""
        self.attributes_read = 0
        """How often a function took an attribute that other code may set."""
        self.sequentials: list[Instance] = []
        """The Sequentials that data is being sent through, outermost first."""
        self._resolved: dict[tuple[str, str], Value] = {}
        self._abilities: dict[tuple[object, ...], tuple[object, Ability]] = {}

    def execute(self, body: Sequence[ast.stmt]) -> bool:
        """Read statements in order; False when control leaves before the end."""
        self.statements_left -= len(body)
        for node in body:
            handler = _STATEMENTS.get(type(node))
            if handler is not None and handler(self, node) is False:
                return False
        return True

    def evaluate(self, node: ast.expr) -> Value:
        """What an expression is known to be."""
        handler = _EXPRESSIONS.get(type(node))
        if handler is not None:
            return handler(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)
        return UNKNOWN

    def call(self, value: Value, call: Call) -> Value:
        """The result of calling a value."""
        return _CALLEES[type(value)](self, value, call)

    def look_up(self, name: str) -> Value:
        """What a name is here."""
        scope = self.frame.scope
        bound = scope.get(name)
        meant = self.resolve(bound)
        if self.call_stack and scope.outer is not None and name not in scope.names:
            self.outside.append(OuterName(scope.outer, name, bound, meant))
        return meant

    def resolve(self, value: Value) -> Value:
        """Follow an imported name into the user's own modules."""
        if isinstance(value, Choice):
            return reduce(join, map(self.resolve, value.options))
        if not isinstance(value, Symbol) or value.name.startswith(("torch.", "builtins.")):
            return value
        assert self.frame.source is not None
        key = (value.name, self.frame.source.path)
        if key not in self._resolved:
            self._resolved[key] = self.project.resolve(value, key[1])
        return self._resolved[key]

    def ability_unread(self, function: UserFunction, given: Mapping[str, Value]) -> Ability:
        """What a function could do that is not read and is given this, by its text.

        A function that it is given counts as one of its own.
        """
        known = {name: value for name, value in given.items() if isinstance(value, UserFunction)}
        computes = self.forward_depth > 0
        key = (function.node, id(function.owner), computes, *sorted((name, id(value)) for name, value in known.items()))
        if key not in self._abilities:
            # The functions are kept, so that no other can have their ids.
            self._abilities[key] = (function, known), ability_of_text(function, known, computes=computes)
        return self._abilities[key][1]

    def place(self, node: ast.AST) -> Place:
        """Where a node is in the user's file."""
        frame = self.frame
        assert frame.source is not None
        return frame.source.place(node, frame.function)

    def tick(self) -> int:
        """The next moment on the reader's clock."""
        self.time += 1
        return self.time

    def write(self, event: Event, value: Value | None = None, subject: Value | None = None) -> Happened:
        """Write an event at the current point of the trace."""
        happened = Happened(event, value, subject, self.tick())
        self.block.append(happened)
        if isinstance(event, LossCall):
            self.facts.losses.append(happened)
        if isinstance(event, Backward):
            self.facts.backwards.append(happened)
        return happened

    def hide(self, node: ast.AST, values: Iterable[Value], can: Ability = EVERYTHING, *, anywhere: bool = True) -> None:
        """Something trainable went where the reader cannot follow, and all that it `can` may have happened there.

        It happened to `values`, unless it could reach others `anywhere`.
        """
        name = dotted(node.func) if isinstance(node, ast.Call) else ""
        given = tuple(values)
        within = (*given, *reachable(given))
        self.block.append(Hidden(self.place(node), name, can, () if anywhere else within))
        self.facts.escaped.update(map(id, within))

    def tensor(
        self,
        op: str,
        inputs: tuple[Value, ...],
        node: ast.AST,
        cut: str = "",
        module: Instance | None = None,
        args: tuple[Value, ...] = (),
        options: dict[str, Value] | None = None,
    ) -> Tensor:
        """The result of an operation, which no gradient passes when recording is off."""
        where = self.place(node)
        origin = where if cut else None
        if not cut and self.grad_off is not None:
            cut, origin = "no_grad", self.grad_off
        return Tensor(op, inputs, where, cut, origin, module, node=node, args=args, options=options or {})

    def if_reached(self, layer: Value) -> Value:
        """A layer that is put into a list inside a branch: it may be missing there."""
        if not self.frame.branches or not knowledge.is_module(layer):
            return layer
        return Choice((layer, Instance("torch.nn.Identity")))

    def set_trainable(self, owner: Value, wanted: Value, node: ast.AST) -> None:
        """`requires_grad` was set: on known parameters, or on something that may be any of them."""
        trainable = wanted != Const(False)
        for option in alternatives(owner):
            if isinstance(option, Tensor):
                option.leaf = option.leaf or (trainable and not papers_over(option))
                continue
            if isinstance(option, Param):
                option = option.owner
            elif not knowledge.is_module(option):
                if not trainable:
                    continue
                option = UNKNOWN
            self.facts.frozen.append(Frozen(option, trainable, self.branch_depth > 0, self.place(node), self.tick()))

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        """Read in another frame."""
        previous, self.frame = self.frame, frame
        try:
            yield
        finally:
            self.frame = previous

    @contextmanager
    def collecting(self, node: Inlined | Loop) -> Iterator[None]:
        """Write events into `node`, which joins the trace if anything happened."""
        outer, self.block = self.block, node.body
        try:
            yield
        finally:
            self.block = outer
            if says_something(node.body):
                outer.append(node)

    @contextmanager
    def recording(self, off: Place | None, unknown: bool) -> Iterator[None]:
        """Gradient recording is switched off at `off`, or on when that is None."""
        before = self.grad_off, self.grad_unknown
        self.grad_off, self.grad_unknown = off, unknown
        try:
            yield
        finally:
            self.grad_off, self.grad_unknown = before
