"""A script's events as a tree of branches and loops, and the paths through a loop that the tree allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from enum import Flag, StrEnum, auto
from itertools import product

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

MOST_CONDITIONS = 8
MOST_PATHS = 4096
REPEATED_LOOPS = 4
"""Nested loops that a path goes through twice; every further one would double its length."""
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
    return [node for node in _consequences(block) if isinstance(node, Hidden) and node.can & ability]


def paths(loop: Loop, iterations: int = 2, ordered: tuple[type[Event], ...] = ORDERED) -> list[Path]:
    """What so many iterations of the loop can do, one path per combination of the conditions that decide on `ordered`.

    Empty when there are too many paths to look at: then nothing is known to hold on all of them.
    """
    steady, varying = _conditions(loop.body, ordered)
    if len(steady) > MOST_CONDITIONS or len(varying) > MOST_CONDITIONS:
        return []
    found: dict[tuple[int, ...], Path] = {}
    for same in product((True, False), repeat=len(steady)):
        chosen = dict(zip(sorted(steady), same, strict=True))
        options = _iterations(loop, chosen, sorted(varying))
        if len(options) ** iterations > MOST_PATHS:
            return []
        for path in _sequences(options, iterations):
            found.setdefault(tuple(map(id, path)), path)
    return list(found.values())


def _iterations(loop: Loop, steady: dict[str, bool], varying: Sequence[str]) -> list[tuple[Path, bool]]:
    """The different iterations the loop can have, and whether another may follow each."""
    found: dict[tuple[object, ...], tuple[Path, bool]] = {}
    for values in product((True, False), repeat=len(varying)):
        collected: list[PathItem] = []
        left = _walk(loop.body, {**steady, **dict(zip(varying, values, strict=True))}, collected)
        continues = left in (None, Exit.CONTINUE)
        found.setdefault((*map(id, collected), continues), ((*collected, ITERATION_END), continues))
    return list(found.values())


def _sequences(options: Sequence[tuple[Path, bool]], iterations: int) -> Iterator[Path]:
    for iteration, continues in options:
        if continues and iterations > 1:
            yield from (iteration + rest for rest in _sequences(options, iterations - 1))
        else:
            yield iteration


def _conditions(block: Sequence[Node], ordered: tuple[type[Event], ...]) -> tuple[set[str], set[str]]:
    """Conditions that decide what happens: those fixed for the whole loop, and those that may change per iteration."""
    steady: set[str] = set()
    varying: set[str] = set()
    waiting = list(block)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Branch):
            decided = _consequences([*node.then, *node.other])
            if any(_matters(item, ordered) for item in decided):
                (varying if node.varies else steady).add(node.condition)
            waiting += [*node.then, *node.other]
        elif isinstance(node, Loop | Inlined):
            waiting += node.body
    return steady - varying, varying


def _matters(item: Node, ordered: tuple[type[Event], ...]) -> bool:
    """Does it change the order of these events, or how an iteration ends that does not end the program?"""
    if isinstance(item, Happened):
        return isinstance(item.event, ordered)
    return not (isinstance(item, Leave) and item.kind is Exit.RAISE)


def says_something(block: Sequence[Node]) -> bool:
    """Does anything happen in the block, on any branch?"""
    return any(not isinstance(node, Leave) for node in _consequences(block))


def _consequences(block: Sequence[Node]) -> Iterator[Node]:
    for node in block:
        if isinstance(node, Happened | Hidden | Leave):
            yield node
        elif isinstance(node, Branch):
            yield from _consequences(node.then)
            yield from _consequences(node.other)
        else:
            yield from _consequences(node.body)


def _walk(
    block: Sequence[Node], chosen: dict[str, bool], out: list[PathItem], repeated: int = REPEATED_LOOPS
) -> Exit | None:
    """Append what happens on the chosen branches, and return how control left the block, if it did."""
    for node in block:
        left: Exit | None = None
        if isinstance(node, Happened | Hidden):
            out.append(node)
        elif isinstance(node, Leave):
            left = node.kind
        elif isinstance(node, Branch):
            taken = chosen.get(node.condition)
            if taken is None:
                # It decides nothing but whether the program ends here.
                taken = not any(isinstance(item, Leave) for item in _consequences(node.then))
            left = _walk(node.then if taken else node.other, chosen, out, repeated)
        elif isinstance(node, Inlined):
            left = _walk(node.body, chosen, out, repeated)
            left = None if left is Exit.RETURN else left
        else:
            for _ in range(2 if repeated else 1):
                left = _walk(node.body, chosen, out, max(repeated - 1, 0))
                if left in (Exit.BREAK, Exit.RETURN, Exit.RAISE):
                    break
            left = left if left in (Exit.RETURN, Exit.RAISE) else None
        if left:
            return left
    return None
