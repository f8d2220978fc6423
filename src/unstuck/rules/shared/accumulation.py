"""Gradient accumulation, in a script and in a run: which backwards each step adds up, and what happens in between.

With several optimizers a record does not say whose gradients a backward makes; most rules then stay silent.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from unstuck.events import (
    Backward,
    Clip,
    Event,
    Forward,
    LossCall,
    NonFinite,
    OptimizerStep,
    SchedulerStep,
    StepSkipped,
    Unscale,
    ZeroGrad,
)
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rules.shared.dynamics import remembered
from unstuck.source import Script
from unstuck.source.trace import Ability, Branch, Hidden, Located, Loop, hidden_in, located, loops_in

MICRO_STEPS = pattern(r"accum|micro|grad_?acc", re.I)
MICRO_BATCHES = pattern(r"(micro|accum|sub|mini)_?batches$", re.I)
UNSURE = Ability.STEP | Ability.CLEAR | Ability.RESCALE
"""What makes a window uncertain."""
STEADY = 3
"""Fewer windows than this may be chance."""
MOST = 64
"""A window with this many backwards may have had more that were not recorded."""
SEEN = (Backward, ZeroGrad, Unscale, Clip, LossCall, Forward, SchedulerStep, OptimizerStep, StepSkipped)


class Window(msgspec.Struct, eq=False):
    """One loop with `if i % every == 0: step()`, or `for _ in range(every): backward()` before each step.

    Events in nested loops are left out.
    """

    loop: Loop
    """Each iteration of it is one micro-step."""
    guard: str
    """The condition as text, such as `(i + 1) % accum == 0`; empty when the micro-steps are a loop of their own."""
    every: str
    """N as it is written, such as `args.accumulation_steps` or `4`."""
    hidden: list[Hidden]
    """Calls in the loop that could not be read; they may step, clear or divide."""
    at_boundary: list[Located]
    """Events under the guard: once per window."""
    in_every_iteration: list[Located]
    """Events that happen in every iteration, whatever other conditions hold."""
    between: list[Located]
    """Events that happen in every iteration but the one that steps."""

    @property
    def complete(self) -> bool:
        """Could everything in the loop be read?"""
        return not self.hidden

    def once(self, *kinds: type[Event]) -> list[Located]:
        """Events of these kinds that happen once per window."""
        return [item for item in self.at_boundary if isinstance(item.item.event, kinds)]

    def every_iteration(self, *kinds: type[Event]) -> list[Located]:
        """Events of these kinds that happen in every iteration."""
        return [item for item in self.in_every_iteration if isinstance(item.item.event, kinds)]

    @property
    def backwards(self) -> list[Located]:
        """The backward passes of the micro-steps."""
        return [item for item in (*self.in_every_iteration, *self.between) if isinstance(item.item.event, Backward)]

    @property
    def when(self) -> str:
        """When a window ends, for a message."""
        return f"only under `if {self.guard}`" if self.guard else f"once per {self.every} iterations"


@functools.lru_cache(maxsize=2)
def windows(script: Script) -> tuple[Window, ...]:
    """The accumulation windows of the script."""
    if not script.facts.backwards:
        return ()
    if not MICRO_STEPS.search(script.text) and not any(
        word in script.text for word in ("%", "+= 1", "chunk(", "batches")
    ):
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
    """The window of a loop whose steps are all under the same guard."""
    steps = [item for item in direct if isinstance(item.item.event, OptimizerStep)]
    guards = {branch.condition: every for item in steps for branch, _, every in _guards(loop, item)}
    if len(guards) != 1 or not all(any(_guards(loop, item)) for item in steps):
        return None
    ((guard, every),) = guards.items()
    if every in ("0", "1"):
        return None
    outcome = next(outcome for item in steps for _, outcome, _ in _guards(loop, item))
    inside = [item for item in direct if _side(item, guard) is outcome]
    outside = [item for item in direct if _side(item, guard) is None]
    between = [item for item in direct if _side(item, guard) is (not outcome)]
    text = guard if outcome else f"not ({guard})"
    return Window(loop, text, every, hidden_in(loop.body, UNSURE), inside, outside, between)


def _side(item: Located, condition: str) -> bool | None:
    """Whether the condition holds where the event happens; None if it does not matter."""
    return next((outcome for branch, outcome in item.branches if branch.condition == condition), None)


def _guards(loop: Loop, item: Located) -> Iterator[tuple[Branch, bool, str]]:
    """The branches on the way to an event that are taken only in every Nth iteration, with N."""
    for branch, outcome in item.branches:
        every = _every(loop, branch.condition, outcome) if branch.varies else ""
        if every:
            yield branch, outcome, every


def _every(loop: Loop, condition: str, outcome: bool) -> str:
    """N, if the condition has this value in every Nth iteration of the loop (and perhaps in the last)."""
    try:
        test = ast.parse(condition, mode="eval").body
    except SyntaxError:
        return ""
    test = _behind_name(loop, test)
    parts = test.values if isinstance(test, ast.BoolOp) else [test]
    return next((every for part in parts if (every := _modulus(part, outcome) or _counted(loop, part, outcome))), "")


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


def _modulus(test: ast.expr, outcome: bool) -> str:
    """N of `i % N == r` that is true, of `i % N != r` that is false, and of a plain `i % N` that is false."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _modulus(test.operand, not outcome)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.NotEq):
        left, wanted = test.left, isinstance(test.ops[0], ast.Eq)
    else:
        left, wanted = test, False
    found = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod) and wanted is outcome
    return ast.unparse(left.right) if found and isinstance(left, ast.BinOp) else ""


def _counted(loop: Loop, test: ast.expr, outcome: bool) -> str:
    """N of `count == N` or `count >= N`, where the loop adds 1 to count and sets it back to 0."""
    if not outcome or not isinstance(test, ast.Compare) or len(test.ops) != 1:
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
    """A loop over micro-batches around backward, with the step after it."""
    events = list(located(outer.body))
    own = [item for item in events if not item.loops]
    if not any(isinstance(item.item.event, OptimizerStep) for item in own):
        return
    for loop in {id(item.loops[0]): item.loops[0] for item in events if item.loops}.values():
        every = _micro_steps(loop)
        direct = [item for item in events if item.loops == (loop,)]
        window = Window(loop, "", every, hidden_in(outer.body, UNSURE), own, direct, [])
        if every and window.backwards and not window.every_iteration(OptimizerStep):
            yield window


def _micro_steps(loop: Loop) -> str:
    """How often a loop runs, if it goes over the micro-batches of one step.

    N of `for _ in range(N)` whose names say so and of `for part in batch.chunk(N)`; the length of `micro_batches`.
    """
    if not isinstance(loop.node, ast.For):
        return ""
    for node in ast.walk(loop.node.iter):
        name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in ("range", "trange") and len(node.args) == 1:
            every = ast.unparse(node.args[0])
            named = MICRO_STEPS.search(every) or MICRO_STEPS.search(ast.unparse(loop.node.target))
            return every if named else ""
        if isinstance(node, ast.Call) and name == "chunk" and node.args:
            return ast.unparse(node.args[-1] if ast.unparse(node.func) == "torch.chunk" else node.args[0])
        if isinstance(node, ast.Name) and MICRO_BATCHES.search(node.id):
            return f"len({node.id})"
    return ""


class StepWindow(NamedTuple):
    """The events of a recorded window, in order; it ends with `step`."""

    events: tuple[Event, ...]
    step: OptimizerStep | StepSkipped

    @property
    def backwards(self) -> list[Backward]:
        """The backwards whose gradients the step used."""
        return [event for event in self.events if isinstance(event, Backward) and not event.failed]

    def between(self) -> Iterator[tuple[Backward, Backward, list[Event]]]:
        """Each backward with the next one and what happened in between."""
        spots = [index for index, event in enumerate(self.events) if isinstance(event, Backward) and not event.failed]
        for first, second in itertools.pairwise(spots):
            one, other = self.events[first], self.events[second]
            assert isinstance(one, Backward)
            assert isinstance(other, Backward)
            yield one, other, list(self.events[first + 1 : second])

    def after_backward(self) -> list[Event]:
        """What happened between the last backward and the step."""
        last = max((i for i, event in enumerate(self.events) if isinstance(event, Backward)), default=-1)
        return list(self.events[last + 1 :])

    @property
    def norm_ratio(self) -> float | None:
        """The norm that reached the clipping or the step, as a share of the one after the last backward.

        None if it was not measured, or if a scaler divided in between.
        """
        made = self.backwards[-1].grad_norm if self.backwards else None
        later = self.after_backward()
        if not made or self.backwards[-1].scaled or any(isinstance(event, ZeroGrad) for event in later):
            return None
        clip = next((event for event in later if isinstance(event, Clip)), None)
        used = clip.norm if clip is not None else getattr(self.step, "grad_norm", None)
        return used / made if used is not None else None


@remembered
def step_windows(record: Record, *, alone: bool = True) -> list[StepWindow]:
    """The recorded windows of a run; none if several optimizers step, unless `alone` is False."""
    if alone and len({step.optimizer for step in record.of(OptimizerStep)}) != 1:
        return []
    found: list[StepWindow] = []
    pending: list[Event] = []
    for event in record.events:
        if not isinstance(event, SEEN):
            continue
        if pending and pending[0].step != event.step:
            pending = []
        if isinstance(event, OptimizerStep | StepSkipped):
            found.append(StepWindow(tuple(pending), event))
            pending = []
        else:
            pending.append(event)
    return [window for window in found if not getattr(window.step, "inside_closure", False)]


@remembered
def micro_windows(record: Record) -> list[StepWindow]:
    """Windows in which the same line ran backward several times, up to the first NaN."""
    broken = min((event.step for event in record.of(NonFinite)), default=math.inf)
    return [window for window in step_windows(record) if is_micro(window) and window.step.step < broken]


def is_micro(window: StepWindow) -> bool:
    """Does it have several backwards, all on one line?"""
    backwards = window.backwards
    lines = {backward.place and backward.place.key for backward in backwards}
    return 2 <= len(backwards) < MOST and len(lines) == 1 and None not in lines


def usual(counts: Sequence[int]) -> int:
    """The most frequent number; 0 if there is none."""
    return Counter(counts).most_common(1)[0][0] if counts else 0


def close(one: float, other: float, tolerance: float = 0.01) -> bool:
    """Are two numbers equal up to rounding?"""
    return abs(one - other) <= tolerance * max(abs(one), abs(other))
