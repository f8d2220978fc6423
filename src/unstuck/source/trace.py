"""A script's events as a tree of branches and loops, and the paths through a loop that the tree allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import product

import msgspec

from unstuck.events import Event, Place
from unstuck.source.values import Value

MOST_CONDITIONS = 7


class Happened(msgspec.Struct, eq=False):
    """One event, with the abstract values that took part."""

    event: Event
    value: Value | None = None
    subject: Value | None = None
    """The optimizer, model or parameters acted on."""


class Hidden(msgspec.Struct, eq=False):
    """A call into code we cannot read that was given something able to train: anything may have happened."""

    place: Place | None
    called: str


class Leave(msgspec.Struct, eq=False):
    """Control leaves: `return`, `continue`, `break` or `raise`."""

    kind: str


class Branch(msgspec.Struct, eq=False):
    """Two ways on. Branches with the same `condition` go the same way on one path, unless it `varies`."""

    condition: str
    varies: bool
    then: Block = msgspec.field(default_factory=list)
    other: Block = msgspec.field(default_factory=list)


class Loop(msgspec.Struct, eq=False):
    """A loop of the script and what one turn does."""

    node: ast.For | ast.AsyncFor | ast.While
    place: Place
    body: Block = msgspec.field(default_factory=list)


class Inlined(msgspec.Struct, eq=False):
    """The events of a function that was called; a `return` ends only this."""

    body: Block = msgspec.field(default_factory=list)


class Turn(msgspec.Struct, eq=False):
    """Marks the end of a turn in a path through a loop."""


TURN = Turn()

Node = Happened | Hidden | Leave | Branch | Loop | Inlined
Block = list[Node]
Path = tuple[Happened | Hidden | Turn, ...]


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


def events_in(block: Sequence[Node], *, nested_loops: bool = True) -> Iterator[Happened]:
    """Every event in the tree, whatever the branch."""
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


def paths(loop: Loop, turns: int = 2) -> Iterator[Path]:
    """What `turns` turns of the loop can do, one path per combination of its conditions."""
    steady, varying = _conditions(loop.body)
    steady_keys, varying_keys = sorted(steady)[:MOST_CONDITIONS], sorted(varying)[:MOST_CONDITIONS]
    seen: set[tuple[int, ...]] = set()
    for same in product((True, False), repeat=len(steady_keys)):
        chosen = dict(zip(steady_keys, same, strict=True))
        options = [_turn(loop, chosen, varying_keys, values) for values in _all_ways(varying_keys)]
        for turn in product(_distinct(options), repeat=turns):
            path = tuple(item for part in turn for item in part)
            key = tuple(map(id, path))
            if key not in seen:
                seen.add(key)
                yield path


def _all_ways(keys: Sequence[str]) -> Iterator[tuple[bool, ...]]:
    yield from product((True, False), repeat=len(keys))


def _distinct(options: list[Path]) -> list[Path]:
    return list({tuple(map(id, option)): option for option in options}.values())[:16]


def _turn(loop: Loop, steady: dict[str, bool], varying: Sequence[str], values: Sequence[bool]) -> Path:
    collected: list[Happened | Hidden | Turn] = []
    _walk(loop.body, {**steady, **dict(zip(varying, values, strict=True))}, collected)
    return (*collected, TURN)


def _conditions(block: Sequence[Node]) -> tuple[set[str], set[str]]:
    """Conditions that decide about events: those that hold for the whole loop, and those that change per turn."""
    steady: set[str] = set()
    varying: set[str] = set()
    for node in block:
        children: list[Block] = []
        if isinstance(node, Branch):
            if _matters(node):
                (varying if node.varies else steady).add(node.condition)
            children = [node.then, node.other]
        elif isinstance(node, Loop | Inlined):
            children = [node.body]
        for child in children:
            inner_steady, inner_varying = _conditions(child)
            steady |= inner_steady
            varying |= inner_varying
    return steady - varying, varying


def says_something(block: Sequence[Node]) -> bool:
    """Does anything happen in the block, whatever the branch?"""
    return any(not isinstance(node, Leave) for node in _consequences(block))


def _matters(branch: Branch) -> bool:
    return any(True for _ in _consequences(branch.then)) or any(True for _ in _consequences(branch.other))


def _consequences(block: Sequence[Node]) -> Iterator[Node]:
    for node in block:
        if isinstance(node, Happened | Hidden | Leave):
            yield node
        elif isinstance(node, Branch):
            yield from _consequences(node.then)
            yield from _consequences(node.other)
        else:
            yield from _consequences(node.body)


def _walk(block: Sequence[Node], chosen: dict[str, bool], out: list[Happened | Hidden | Turn]) -> str:
    """Append what happens on the chosen way; the word it returns says how control left, if it did."""
    for node in block:
        left = ""
        if isinstance(node, Happened | Hidden):
            out.append(node)
        elif isinstance(node, Leave):
            left = node.kind
        elif isinstance(node, Branch):
            left = _walk(node.then if chosen.get(node.condition, True) else node.other, chosen, out)
        elif isinstance(node, Inlined):
            left = _walk(node.body, chosen, out)
            left = "" if left == "return" else left
        else:
            left = _walk_nested_loop(node, chosen, out)
        if left:
            return left
    return ""


def _walk_nested_loop(loop: Loop, chosen: dict[str, bool], out: list[Happened | Hidden | Turn]) -> str:
    for _ in range(2):
        left = _walk(loop.body, chosen, out)
        if left in ("return", "raise"):
            return left
        if left == "break":
            break
    return ""
