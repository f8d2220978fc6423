"""The paths through a loop that its tree of branches allows.

A path is one way through some iterations: conditions decide it, those that cannot change inside the loop the same way
in every iteration. Ways that lead to the same events are one, so conditions that decide nothing cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

import msgspec

from unstuck.events import Backward, Clip, Event, ModeChange, Unscale, ZeroGrad
from unstuck.source.trace import (
    ITERATION_END,
    NOTHING,
    ORDERED,
    Ability,
    Branch,
    Exit,
    Happened,
    Hidden,
    Inlined,
    Leave,
    Loop,
    Node,
    Path,
    PathItem,
    consequences,
)

MOST_PATHS = 4096
MOST_WAYS = 256
"""Through one iteration."""
REPEATED_LOOPS = 4
"""Nested loops that a path goes through twice; every further one would double its length."""
CAUSED_BY: dict[type[Event], Ability] = {
    Backward: Ability.BACKWARD,
    ZeroGrad: Ability.CLEAR,
    Clip: Ability.RESCALE,
    Unscale: Ability.RESCALE,
    ModeChange: Ability.SWITCH,
}
"""What a call must be able to do to cause such an event; STEP for the others."""

Chosen = dict[str, bool]


class _TooManyError(Exception):
    """There are more ways than are looked at."""


class _Way(msgspec.Struct, eq=False):
    """One way so far: what happened, and the outcomes of conditions that are asked again."""

    items: tuple[PathItem, ...]
    chosen: Chosen


_Ends = dict[Exit | None, list[_Way]]


def paths(loop: Loop, iterations: int = 2, ordered: tuple[type[Event], ...] = ORDERED) -> list[Path]:
    """What so many iterations of the loop can do, one path per combination of the conditions that decide on `ordered`.

    Empty when there are too many paths to look at: then nothing is known to hold on all of them.
    """
    for whole in (False, True):
        try:
            return _Paths(loop, ordered, whole).through(iterations)
        except _TooManyError:
            continue
    return []


class _Paths:
    """Walks a loop. With `whole`, a part in which no ordered event happens is one item: all its unread calls."""

    def __init__(self, loop: Loop, ordered: tuple[type[Event], ...], whole: bool) -> None:
        self._loop = loop
        self._ordered = ordered
        self._abilities = reduce(or_, (CAUSED_BY.get(kind, Ability.STEP) for kind in ordered), NOTHING)
        self._whole = whole
        self._asked: Counter[str] = Counter()
        """How often a condition is asked that decides something; 2 stands for often."""
        self._varying: set[str] = set()
        self._count(loop.body, often=False)

    def through(self, iterations: int) -> list[Path]:
        found: dict[tuple[int, ...], Path] = {}
        for path in self._sequences({}, iterations):
            found.setdefault(tuple(map(id, path)), path)
            if len(found) > MOST_PATHS:
                raise _TooManyError
        return list(found.values())

    def _sequences(self, steady: Chosen, iterations: int) -> Iterator[Path]:
        ends = self._walk(self._loop.body, [_Way((), steady)], REPEATED_LOOPS)
        later: dict[frozenset[tuple[str, bool]], list[Path]] = {}
        for left, ways in ends.items():
            for way in ways:
                iteration = (*way.items, ITERATION_END)
                if iterations == 1 or left not in (None, Exit.CONTINUE):
                    yield iteration
                    continue
                kept = {name: outcome for name, outcome in way.chosen.items() if name not in self._varying}
                key = frozenset(kept.items())
                if key not in later:
                    later[key] = list(self._sequences(kept, iterations - 1))
                yield from (iteration + rest for rest in later[key])

    def _count(self, block: Sequence[Node], *, often: bool) -> None:
        for node in block:
            if isinstance(node, Branch):
                if any(self._matters(item) for item in consequences([*node.then, *node.other])):
                    self._asked[node.condition] += 2 if often else 1
                    if node.varies:
                        self._varying.add(node.condition)
                self._count(node.then, often=often)
                self._count(node.other, often=often)
            elif isinstance(node, Inlined):
                self._count(node.body, often=often)
            elif isinstance(node, Loop):
                self._count(node.body, often=True)

    def _matters(self, item: Node) -> bool:
        """Does it change the order of these events, or how an iteration ends that does not end the program?"""
        if isinstance(item, Happened):
            return isinstance(item.event, self._ordered)
        if isinstance(item, Hidden):
            return bool(item.can & self._abilities)
        return not (isinstance(item, Leave) and item.kind is Exit.RAISE)

    def _walk(self, block: Sequence[Node], ways: list[_Way], repeated: int) -> _Ends:
        """Follow these ways through a block: where control leaves it, and how."""
        ends: _Ends = {}
        for node in block:
            if not ways:
                break
            left = self._step(node, ways, repeated)
            ways = left.pop(None, [])
            for kind, leaving in left.items():
                ends.setdefault(kind, []).extend(leaving)
        ends[None] = ways
        return ends

    def _step(self, node: Node, ways: list[_Way], repeated: int) -> _Ends:
        if isinstance(node, Happened | Hidden):
            return {None: [_Way((*way.items, node), way.chosen) for way in ways]}
        if isinstance(node, Leave):
            return {node.kind: ways}
        if self._whole and self._is_quiet(node):
            unread = tuple(item for item in consequences([node]) if isinstance(item, Hidden))
            return {None: [_Way(way.items + unread, way.chosen) for way in ways]}
        if isinstance(node, Branch):
            return _distinct(self._branch(node, ways, repeated))
        if isinstance(node, Inlined):
            ends = self._walk(node.body, ways, repeated)
            ends[None] = [*ends.get(None, []), *ends.pop(Exit.RETURN, [])]
            return _distinct(ends)
        return _distinct(self._inner_loop(node, ways, repeated))

    def _branch(self, node: Branch, ways: list[_Way], repeated: int) -> _Ends:
        ends: _Ends = {}
        sides: dict[bool, list[_Way]] = {True: [], False: []}
        for way in ways:
            known = way.chosen.get(node.condition)
            asked = self._asked[node.condition]
            if known is None and not asked:
                # It decides nothing but whether the program ends here.
                known = not any(isinstance(item, Leave) for item in consequences(node.then))
            kept = asked > 1 or (asked == 1 and node.condition not in self._varying)
            for outcome in (True, False) if known is None else (known,):
                chosen = {**way.chosen, node.condition: outcome} if kept and known is None else way.chosen
                sides[outcome].append(_Way(way.items, chosen))
        for outcome, side in ((True, node.then), (False, node.other)):
            for kind, leaving in self._walk(side, sides[outcome], repeated).items():
                ends.setdefault(kind, []).extend(leaving)
        return ends

    def _inner_loop(self, node: Loop, ways: list[_Way], repeated: int) -> _Ends:
        ends: _Ends = {None: []}
        for _ in range(2 if repeated else 1):
            left = self._walk(node.body, ways, max(repeated - 1, 0))
            ends[None] += left.pop(Exit.BREAK, [])
            ways = [*left.pop(None, []), *left.pop(Exit.CONTINUE, [])]
            for kind, leaving in left.items():
                ends.setdefault(kind, []).extend(leaving)
        ends[None] += ways
        return ends

    def _is_quiet(self, node: Node) -> bool:
        """Does no ordered event happen in it, and does control reach what follows it?"""
        inside = list(consequences([node]))
        leaves = [item.kind for item in inside if isinstance(item, Leave)]
        stays = isinstance(node, Inlined) or all(kind is Exit.RAISE for kind in leaves)
        happened = (item.event for item in inside if isinstance(item, Happened))
        return stays and not any(isinstance(event, self._ordered) for event in happened)


def _distinct(ends: _Ends) -> _Ends:
    """Ways that had the same events and remember the same outcomes are one."""
    for kind, ways in ends.items():
        if len(ways) > 1:
            found = {(tuple(map(id, way.items)), frozenset(way.chosen.items())): way for way in reversed(ways)}
            ends[kind] = list(reversed(found.values()))
            if len(ends[kind]) > MOST_WAYS:
                raise _TooManyError
    return ends
