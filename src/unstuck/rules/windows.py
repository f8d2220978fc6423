"""Accumulation windows in a script: loops that run backward on every turn and step only on every N-th."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Event, OptimizerStep
from unstuck.source.trace import Branch, Located, Loop, located, reads_all

if TYPE_CHECKING:
    from unstuck.source import Script


class Window(msgspec.Struct, eq=False):
    """One loop with `if turn % every == 0: step()`. Events in nested loops are left out."""

    loop: Loop
    guard: str
    """The condition as text, such as `(i + 1) % accum == 0`."""
    every: str
    """N as it is written, such as `args.accumulation_steps` or `4`."""
    complete: bool
    """Everything in the loop could be read; otherwise something unseen may step, clear or divide."""
    at_boundary: list[Located]
    """Events under the guard: once per window."""
    at_every_turn: list[Located]
    """Events that happen on every turn, whatever other conditions hold."""

    def once(self, *kinds: type[Event]) -> list[Located]:
        """Events of these kinds that happen once per window."""
        return [item for item in self.at_boundary if isinstance(item.item.event, kinds)]

    def every_turn(self, *kinds: type[Event]) -> list[Located]:
        """Events of these kinds that happen on every turn."""
        return [item for item in self.at_every_turn if isinstance(item.item.event, kinds)]


def windows(script: Script) -> Iterator[Window]:
    """Loops of the script that accumulate gradients: every step stands under one guard with `%`, backward does not."""
    for loop in script.training_loops:
        direct = [item for item in located(loop.body) if not item.loops]
        window = _window(loop, direct)
        if window is not None and window.every_turn(Backward):
            yield window


def _window(loop: Loop, direct: list[Located]) -> Window | None:
    steps = [item for item in direct if isinstance(item.item.event, OptimizerStep)]
    guards = {branch.condition: branch for item in steps for branch in _guards(item)}
    if len(guards) != 1 or not all(_guards(item) for item in steps):
        return None
    (guard,) = guards
    every = _divisor(guard)
    if not every or every == "1":
        return None
    inside = [item for item in direct if any(branch.condition == guard for branch in _guards(item))]
    outside = [item for item in direct if all(branch.condition != guard for branch, _ in item.branches)]
    return Window(loop, guard, every, reads_all(loop.body), inside, outside)


def _guards(item: Located) -> list[Branch]:
    """The branches taken to reach it whose condition holds only on every N-th turn."""
    return [branch for branch, held in item.branches if held and branch.varies and "%" in branch.condition]


def _divisor(condition: str) -> str:
    """N of `turn % N == 0` (also with `or this is the last batch`), or empty."""
    try:
        tree = ast.parse(condition, mode="eval")
    except SyntaxError:
        return ""
    for part in ast.walk(tree):
        if isinstance(part, ast.Compare) and isinstance(part.left, ast.BinOp) and isinstance(part.left.op, ast.Mod):
            return ast.unparse(part.left.right)
    return ""
