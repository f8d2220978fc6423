"""The reader's state: where it is, what it has seen, and how it writes events down."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from unstuck.events import Backward, Event, LossCall, Place
from unstuck.lazy import pattern
from unstuck.source.facts import Facts, Frozen
from unstuck.source.flow import papers_over
from unstuck.source.reader import knowledge
from unstuck.source.reader.project import Project
from unstuck.source.reader.scope import Scope, SourceFile
from unstuck.source.trace import Block, Happened, Hidden, Inlined, Loop, says_something
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Const,
    Instance,
    Param,
    Parameters,
    Symbol,
    Tensor,
    UserClass,
    Value,
    alternatives,
    members,
)

DEEPEST_CALL = 12
STATEMENTS_PER_LINE = 4
STATEMENTS_AT_LEAST = 1500
MOST_LINKS = 50_000
"""Layers of Sequentials that are gone through in one script."""
TRAINING_WORDS = pattern(r"(^|[._])(opt(im\w*)?|optimi[sz]er\w*|scaler|loss\w*|model|net|trainer|engine|self)$", re.I)


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
    """Names of its own that follow from its parameters: `training = optimizer is not None`."""
    loops: list[ast.AST] = msgspec.field(default_factory=list)
    """The loops being read, outermost first."""
    branches: int = 0
    """How many branches of this function are being read, one inside the other."""
    source: SourceFile | None = None
    """The file its scope was written in."""

    def __post_init__(self) -> None:
        self.source = self.scope.source


class ReaderState:
    """What all parts of the reader share."""

    def __init__(self, scope: Scope, project: Project, *, follow_calls: bool = True) -> None:
        self.project = project
        self.facts = Facts()
        self.frame = Frame(scope)
        self.block: Block = self.facts.trace
        self.time = 0
        self.branch_depth = 0
        self.forward_depth = 0
        self.grad_off: Place | None = None
        self.grad_unknown = False
        self.active: list[ast.AST] = []
        self.loops: list[Loop] = []
        """The loops being read, also those around the functions that led here."""
        self.trusts_defaults = True
        """Functions are read because something calls them, so an argument left out has its default."""
        self.read: set[ast.AST] = set()
        self.statement: ast.expr | None = None
        """The expression that is a whole statement, until it is read."""
        self.deepest = DEEPEST_CALL if follow_calls else 1
        self._resolved: dict[tuple[str, str], Value] = {}
        self.fuel = STATEMENTS_AT_LEAST + STATEMENTS_PER_LINE * len(scope.source.lines)
        """Statements that may still be read, so that time grows with the file and not with its call graph."""
        self.chained: list[Instance] = []
        """The Sequentials that data is being sent through, outermost first."""
        self.links = MOST_LINKS
        """Layers that data may still be sent through, for the same reason."""

    @property
    def scope(self) -> Scope:
        """Where names are looked up now."""
        return self.frame.scope

    def place(self, node: ast.AST) -> Place:
        """Where a node stands in the user's file."""
        frame = self.frame
        assert frame.source is not None
        return frame.source.place(node, frame.function)

    def tick(self) -> int:
        """The next moment on the reader's clock."""
        self.time += 1
        return self.time

    def happen(self, event: Event, value: Value | None = None, subject: Value | None = None) -> Happened:
        """Write an event down at the current point of the trace."""
        happened = Happened(event, value, subject, self.tick())
        self.block.append(happened)
        if isinstance(event, LossCall):
            self.facts.losses.append(happened)
        if isinstance(event, Backward):
            self.facts.backwards.append(happened)
        return happened

    def hide(self, node: ast.AST, given: Iterator[Value]) -> None:
        """Something trainable went where we cannot follow: anything may have happened there."""
        called = dotted(node.func) if isinstance(node, ast.Call) else ""
        self.block.append(Hidden(self.place(node), called))
        self.facts.escaped.update(id(value) for value in given)

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
        """A layer that is put into a list inside a branch, or nothing in its place."""
        if not self.frame.branches or not knowledge.is_module(layer):
            return layer
        return Choice((layer, Instance("torch.nn.Identity")))

    def freeze(self, owner: Value, trainable: bool, node: ast.AST) -> None:
        """`requires_grad` was set on the parameters of `owner`."""
        self.facts.frozen.append(Frozen(owner, trainable, self.branch_depth > 0, self.place(node), self.tick()))

    def set_trainable(self, owner: Value, wanted: Value, node: ast.AST) -> None:
        """`requires_grad` was set: on known parameters, or on something that may be any of them."""
        off = wanted == Const(False)
        for option in alternatives(owner):
            if isinstance(option, Param):
                self.freeze(option.owner, not off, node)
            elif isinstance(option, Instance) and knowledge.is_module(option):
                self.freeze(option, not off, node)
            elif isinstance(option, Tensor):
                option.leaf = option.leaf or (not off and not papers_over(option))
            elif not off:
                self.freeze(UNKNOWN, True, node)

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[Frame]:
        """Read with another frame, then come back."""
        previous, self.frame = self.frame, frame
        try:
            yield frame
        finally:
            self.frame = previous

    @contextmanager
    def collecting(self, node: Inlined | Loop) -> Iterator[None]:
        """Events go into `node`, which is kept if anything happened."""
        outer, self.block = self.block, node.body
        try:
            yield
        finally:
            self.block = outer
            if says_something(node.body):
                outer.append(node)

    @contextmanager
    def recording(self, off: Place | None, unknown: bool = False) -> Iterator[None]:
        """Gradient recording is switched off at `off`, or on when that is None."""
        before = self.grad_off, self.grad_unknown
        self.grad_off, self.grad_unknown = off, unknown
        try:
            yield
        finally:
            self.grad_off, self.grad_unknown = before


def can_train(value: Value, node: ast.expr | None) -> bool:
    """Could code that is given this value step, zero or back-propagate?"""
    if value is UNKNOWN:
        return node is not None and TRAINING_WORDS.search(dotted(node)) is not None
    return any(_carries_training(option) for option in members(value))


def _carries_training(value: Value) -> bool:
    if isinstance(value, Tensor):
        return not value.cut and value.op in knowledge.LOSS_FUNCTIONS
    if isinstance(value, Parameters | Param):
        return True
    if not isinstance(value, Instance):
        return False
    if knowledge.is_optimizer(value) or knowledge.is_scaler(value) or knowledge.is_module(value):
        return value.last not in knowledge.LOSSES
    return value.cls is not None and any(
        isinstance(item, Instance) and item is not value and knowledge.is_optimizer(item)
        for item in value.attrs.values()
    )


def dotted(node: ast.expr) -> str:
    """`self.opt` for the expression self.opt, empty for anything that is not a plain dotted name."""
    parts: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        parts.append(current.attr)
        current = current.value
    if not isinstance(current, ast.Name):
        return ""
    return ".".join([current.id, *reversed(parts)])


def symbol_name(value: Value) -> str:
    """The dotted path of a library name, or empty."""
    return value.name if isinstance(value, Symbol) else ""
