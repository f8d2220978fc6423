"""Accumulation windows in a script: backward on every turn, a step only on every N-th."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Event, OptimizerStep
from unstuck.lazy import pattern
from unstuck.source.trace import Branch, Hidden, Located, Loop, hidden_in, located, loops_in

if TYPE_CHECKING:
    from unstuck.source import Script

MICRO_STEPS = pattern(r"accum|micro|grad_?acc", re.I)


class Window(msgspec.Struct, eq=False):
    """One loop with `if turn % every == 0: step()`, or `for _ in range(every): backward()` before each step.

    Events in nested loops are left out.
    """

    loop: Loop
    """Each turn of it is one micro-step."""
    guard: str
    """The condition as text, such as `(i + 1) % accum == 0`; empty when the micro-steps are a loop of their own."""
    every: str
    """N as it is written, such as `args.accumulation_steps` or `4`."""
    hidden: list[Hidden]
    """Calls in the loop that could not be read; they may step, clear or divide."""
    at_boundary: list[Located]
    """Events under the guard: once per window."""
    at_every_turn: list[Located]
    """Events that happen on every turn, whatever other conditions hold."""
    between: list[Located]
    """Events that happen on every turn but the one that steps."""

    @property
    def complete(self) -> bool:
        """Everything in the loop could be read."""
        return not self.hidden

    def once(self, *kinds: type[Event]) -> list[Located]:
        """Events of these kinds that happen once per window."""
        return [item for item in self.at_boundary if isinstance(item.item.event, kinds)]

    def every_turn(self, *kinds: type[Event]) -> list[Located]:
        """Events of these kinds that happen on every turn."""
        return [item for item in self.at_every_turn if isinstance(item.item.event, kinds)]

    @property
    def backwards(self) -> list[Located]:
        """The backward passes of the micro-steps."""
        return [item for item in (*self.at_every_turn, *self.between) if isinstance(item.item.event, Backward)]

    @property
    def when(self) -> str:
        """When a window ends, in half a sentence."""
        return f"only under `if {self.guard}`" if self.guard else f"once per {self.every} turns"


@functools.lru_cache(maxsize=2)
def windows(script: Script) -> tuple[Window, ...]:
    """The accumulation windows of the script."""
    if not script.facts.backwards:
        return ()
    if "%" not in script.text and not MICRO_STEPS.search(script.text) and "+= 1" not in script.text:
        return ()
    return tuple(_windows(script))


def _windows(script: Script) -> Iterator[Window]:
    for loop in script.training_loops:
        direct = [item for item in located(loop.body) if not item.loops]
        window = _guarded(loop, direct)
        if window is not None and window.backwards:
            yield window
    for outer in loops_in(script.facts.trace):
        yield from _nested(outer)


def _guarded(loop: Loop, direct: Sequence[Located]) -> Window | None:
    """Every step of the loop stands under one and the same guard."""
    steps = [item for item in direct if isinstance(item.item.event, OptimizerStep)]
    guards = {branch.condition: every for item in steps for branch, _, every in _guards(loop, item)}
    if len(guards) != 1 or not all(any(_guards(loop, item)) for item in steps):
        return None
    ((guard, every),) = guards.items()
    if every in ("0", "1"):
        return None
    held = next(held for item in steps for _, held, _ in _guards(loop, item))
    inside = [item for item in direct if _side(item, guard) is held]
    outside = [item for item in direct if _side(item, guard) is None]
    between = [item for item in direct if _side(item, guard) is (not held)]
    text = guard if held else f"not ({guard})"
    return Window(loop, text, every, hidden_in(loop.body), inside, outside, between)


def _side(item: Located, condition: str) -> bool | None:
    """Whether the condition holds where the event happens; None if it does not matter."""
    return next((held for branch, held in item.branches if branch.condition == condition), None)


def _guards(loop: Loop, item: Located) -> Iterator[tuple[Branch, bool, str]]:
    """The branches taken to reach an event that are taken on every N-th turn only, with N."""
    for branch, held in item.branches:
        every = _every(loop, branch.condition, held) if branch.varies else ""
        if every:
            yield branch, held, every


def _every(loop: Loop, condition: str, held: bool) -> str:
    """N, if the condition comes out like this on every N-th turn of the loop (and perhaps on the last)."""
    try:
        test = ast.parse(condition, mode="eval").body
    except SyntaxError:
        return ""
    test = _behind_name(loop, test)
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return next((every for part in parts if (every := _modulus(part, held) or _counted(loop, part, held))), "")


def _behind_name(loop: Loop, test: ast.expr) -> ast.expr:
    """What `is_boundary` was set to, when it is set once in the loop."""
    if not isinstance(test, ast.Name | ast.Attribute):
        return test
    name = ast.unparse(test)
    values = [
        node.value
        for node in ast.walk(loop.node)
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets)
    ]
    return values[0] if len(values) == 1 else test


def _modulus(test: ast.expr, held: bool) -> str:
    """N of `turn % N == r` that holds, of `turn % N != r` that does not, and of a plain `turn % N` that does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _modulus(test.operand, not held)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.NotEq):
        left, wanted = test.left, isinstance(test.ops[0], ast.Eq)
    else:
        left, wanted = test, False
    found = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and wanted is held
    return ast.unparse(left.right) if found and isinstance(left, ast.BinOp) else ""


def _counted(loop: Loop, test: ast.expr, held: bool) -> str:
    """N of `count == N` or `count >= N`, where the loop adds 1 to count and sets it back to 0."""
    if not held or not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return ""
    if not isinstance(test.ops[0], ast.Eq | ast.GtE):
        return ""
    name = ast.unparse(test.left)
    counts = reset = False
    for node in ast.walk(loop.node):
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == name:
            counts = counts or (isinstance(node.op, ast.Add) and ast.unparse(node.value) == "1")
        elif isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets):
            reset = reset or ast.unparse(node.value) == "0"
    return ast.unparse(test.comparators[0]) if counts and reset else ""


def _nested(outer: Loop) -> Iterator[Window]:
    """`for _ in range(accumulation_steps)` around backward, with the step behind it."""
    events = list(located(outer.body))
    own = [item for item in events if not item.loops]
    if not any(isinstance(item.item.event, OptimizerStep) for item in own):
        return
    for loop in {id(item.loops[0]): item.loops[0] for item in events if item.loops}.values():
        every = _micro_steps(loop)
        direct = [item for item in events if item.loops == (loop,)]
        window = Window(loop, "", every, hidden_in(outer.body), own, direct, [])
        if every and window.backwards and not window.every_turn(OptimizerStep):
            yield window


def _micro_steps(loop: Loop) -> str:
    """N of `for _ in range(N)`, if its name says that gradients are accumulated."""
    called = loop.node.iter if isinstance(loop.node, ast.For) else None
    if not isinstance(called, ast.Call) or ast.unparse(called.func) not in ("range", "trange") or len(called.args) != 1:
        return ""
    every = ast.unparse(called.args[0])
    return every if MICRO_STEPS.search(every) else ""
