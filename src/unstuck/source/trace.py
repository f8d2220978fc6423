"""A script's events as a tree of branches and loops. `paths.py` has the paths that the tree allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Flag, StrEnum, auto

import msgspec

from unstuck.events import (
    Backward,
    Clip,
    Event,
    OptimizerSeen,
    OptimizerStep,
    Place,
    ScalerUpdate,
    SchedulerStep,
    Unscale,
    ZeroGrad,
)
from unstuck.source.values import Value

ORDERED: tuple[type[Event], ...] = (
    Backward, ZeroGrad, Unscale, Clip, OptimizerSeen, OptimizerStep, ScalerUpdate, SchedulerStep
)  # fmt: skip
"""Events whose order and presence rules look at."""


class Happened(msgspec.Struct, eq=False):
    """One event, with the abstract values that took part."""

    event: Event
    value: Value | None = None
    subject: Value | None = None
    """The optimizer, model or parameters acted on."""
    time: int = 0
    """When, on the reader's clock."""
    result: Value | None = None
    """What a loss returned."""
    options: dict[str, Value] = msgspec.field(default_factory=dict)
    """Keywords a loss was made and called with."""
    scaler: Value | None = None
    """The GradScaler through which it was done."""


class Ability(Flag):
    """What code that cannot be read could do with what it was given."""

    BACKWARD = auto()
    """Run a backward pass."""
    CLEAR = auto()
    """Clear or replace gradients."""
    RESCALE = auto()
    """Scale or clip gradients, or divide the loss."""
    STEP = auto()
    """Step an optimizer, or change weights by hand."""
    SWITCH = auto()
    """Switch a model to train or eval mode."""


NOTHING = Ability(0)
EVERYTHING = ~NOTHING
GRADIENTS = Ability.BACKWARD | Ability.CLEAR | Ability.STEP
"""What decides which gradients a step applies."""


class Hidden(msgspec.Struct, eq=False):
    """A call into code that cannot be read, given something able to train."""

    place: Place | None
    called: str
    can: Ability = EVERYTHING
    """What it could do."""
    subjects: tuple[Value, ...] = ()
    """The models, parameters, optimizers and losses it could do that with; empty when it may reach any."""


class Exit(StrEnum):
    """How control leaves a block."""

    RETURN = "return"
    CONTINUE = "continue"
    BREAK = "break"
    RAISE = "raise"


class Leave(msgspec.Struct, eq=False):
    """Control leaves."""

    kind: Exit


class Branch(msgspec.Struct, eq=False):
    """Two ways to continue. Branches with the same `condition` go the same way on one path, unless it `varies`."""

    condition: str
    varies: bool
    then: Block = msgspec.field(default_factory=list)
    other: Block = msgspec.field(default_factory=list)


class Loop(msgspec.Struct, eq=False):
    """A loop of the script and what one iteration does."""

    node: ast.AST
    """A `for` or `while`, or the `training_step` that a framework calls for every batch."""
    place: Place
    body: Block = msgspec.field(default_factory=list)


class Inlined(msgspec.Struct, eq=False):
    """The events of a function that was called; a `return` ends only this."""

    body: Block = msgspec.field(default_factory=list)


class IterationEnd(msgspec.Struct, eq=False):
    """Marks the end of an iteration in a path through a loop."""


ITERATION_END = IterationEnd()

Node = Happened | Hidden | Leave | Branch | Loop | Inlined
Block = list[Node]
PathItem = Happened | Hidden | IterationEnd
Path = tuple[PathItem, ...]


def condition_key(test: ast.expr) -> tuple[str, bool]:
    """A condition as text without its negations, and whether it was negated."""
    negated = False
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, negated = test.operand, not negated
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator = test.ops[0]
        if isinstance(operator, ast.IsNot | ast.NotEq | ast.NotIn):
            opposite = {ast.IsNot: ast.Is, ast.NotEq: ast.Eq, ast.NotIn: ast.In}[type(operator)]
            test = ast.Compare(test.left, [opposite()], test.comparators)
            negated = not negated
        if isinstance(test.ops[0], ast.Is) and ast.unparse(test.comparators[0]) == "None":
            return ast.unparse(test.left), not negated
    return ast.unparse(test), negated


def loops_in(block: Sequence[Node]) -> Iterator[Loop]:
    """Every loop in the tree, outermost first."""
    for node in block:
        if isinstance(node, Loop):
            yield node
            yield from loops_in(node.body)
        elif isinstance(node, Inlined):
            yield from loops_in(node.body)
        elif isinstance(node, Branch):
            yield from loops_in(node.then)
            yield from loops_in(node.other)


class Located(msgspec.Struct, eq=False):
    """An event with the loops around it (outermost first, through function calls) and the branches that lead to it
    since the innermost loop, each with the outcome of its condition. What follows `if c: continue` depends on c."""

    item: Happened
    loops: tuple[Loop, ...]
    branches: tuple[tuple[Branch, bool], ...]


def located(
    block: Sequence[Node], loops: tuple[Loop, ...] = (), branches: tuple[tuple[Branch, bool], ...] = ()
) -> Iterator[Located]:
    """Every event in the tree with its loops and branches."""
    for node in block:
        if isinstance(node, Happened):
            yield Located(node, loops, branches)
        elif isinstance(node, Inlined):
            yield from located(node.body, loops, branches)
        elif isinstance(node, Branch):
            yield from located(node.then, loops, (*branches, (node, True)))
            yield from located(node.other, loops, (*branches, (node, False)))
            for side, outcome in ((node.then, False), (node.other, True)):
                if side and isinstance(side[-1], Leave):
                    branches = (*branches, (node, outcome))
        elif isinstance(node, Loop):
            yield from located(node.body, (*loops, node), ())


def events_in(block: Sequence[Node], *, nested_loops: bool = True) -> Iterator[Happened]:
    """Every event in the tree, on any branch."""
    for node in block:
        if isinstance(node, Happened):
            yield node
        elif isinstance(node, Inlined):
            yield from events_in(node.body, nested_loops=nested_loops)
        elif isinstance(node, Branch):
            yield from events_in(node.then, nested_loops=nested_loops)
            yield from events_in(node.other, nested_loops=nested_loops)
        elif isinstance(node, Loop) and nested_loops:
            yield from events_in(node.body)


def reads_all(block: Sequence[Node], ability: Ability = EVERYTHING) -> bool:
    """Is there no call in the block that could not be followed and is able to do any of this?"""
    return not hidden_in(block, ability)


def hidden_in(block: Sequence[Node], ability: Ability = EVERYTHING) -> list[Hidden]:
    """The calls in the block that could not be followed and are able to do any of this."""
    return [node for node in consequences(block) if isinstance(node, Hidden) and node.can & ability]


def says_something(block: Sequence[Node]) -> bool:
    """Does anything happen in the block, on any branch?"""
    return any(not isinstance(node, Leave) for node in consequences(block))


def consequences(block: Sequence[Node]) -> Iterator[Node]:
    """Everything that can happen in a block, on any branch, in any function."""
    for node in block:
        if isinstance(node, Happened | Hidden | Leave):
            yield node
        elif isinstance(node, Branch):
            yield from consequences(node.then)
            yield from consequences(node.other)
        else:
            yield from consequences(node.body)
