"""G12: gradients left over at the end of an epoch leak into the first step of the next."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unstuck.events import Backward, OptimizerStep, ZeroGrad
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.accumulation import STEADY, UNSURE, StepWindow, Window, is_micro, step_windows, usual, windows
from unstuck.source import Script
from unstuck.source.trace import Hidden, Located, Loop, Node, located, loops_in

rule = Rule(
    code="G12",
    name="accumulation-remainder",
    title="gradients of an unfinished accumulation window carried into the next epoch",
    severity=Severity.WARNING,
    needs=(OptimizerStep, ZeroGrad),
)

CAUSE = (
    "Their gradients are still in .grad when the next epoch begins, so its first step adds them, computed "
    "with older weights, to a full window."
)
HANDLED = pattern(r"drop_last|len\([^)]*\)\s*%|len\(.*\)\s*//|%[^\n]*(!=|>)\s*0\s*:|is_last|last_batch|last_step")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A window whose count restarts in each epoch, with nothing that ends the last window."""
    if "%" not in script.text or "zero_grad" not in script.text:
        return
    for window in windows(script):
        outer = _loop_around(script, window.loop)
        if outer is None or not window.complete or not _counted_per_epoch(window):
            continue
        if window.once(ZeroGrad) and not window.every_iteration(ZeroGrad) and not _ends_outside(outer, window):
            yield from _leak(script, window)


def _loop_around(script: Script, inner: Loop) -> Loop | None:
    return next((loop for loop in loops_in(script.facts.trace) if inner in list(loops_in(loop.body))[:4]), None)


def _counted_per_epoch(window: Window) -> bool:
    """`i` of `for i, batch in enumerate(loader)`: it restarts at 0, and the guard does not mention the last batch."""
    node = window.loop.node
    if not isinstance(node, ast.For) or not window.guard or " or " in window.guard or "len(" in window.guard:
        return False
    first = node.target.elts[0] if isinstance(node.target, ast.Tuple) and node.target.elts else node.target
    counts = isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func).rpartition(".")[2] in (
        "enumerate",
        "range",
    )
    return counts and isinstance(first, ast.Name) and re.search(rf"\b{first.id}\b", window.guard) is not None


def _ends_outside(outer: Loop, window: Window) -> bool:
    """Does the epoch loop itself step or clear, or contain a call that may?"""
    own: Sequence[Located] = [item for item in located(outer.body) if not item.loops]
    return _hides(outer.body, window.loop) or any(isinstance(item.item.event, OptimizerStep | ZeroGrad) for item in own)


def _hides(block: Sequence[Node], inner: Loop) -> bool:
    return any(isinstance(node, Hidden) and bool(node.can & UNSURE) for node in block if node is not inner)


def _leak(script: Script, window: Window) -> Iterator[Finding]:
    left = _left_over(window)
    if left == 0 or (left is None and HANDLED.search(script.text)):
        return
    count = "Batches left over" if left is None else f"{left} batches left over"
    unless = f", unless their number is a multiple of {window.every}" if left is None else ""
    yield rule.finding(
        f"{count} at the end of each epoch leak into the next one{unless}.",
        cause=CAUSE,
        fix=f"Step on the last batch too (`if {window.guard} or {_last_turn(window)}`), or call zero_grad() at the "
        "start of each epoch.",
        subject=Subject.at("loop", "accumulation", window.loop.place),
        place=window.once(OptimizerStep)[0].item.event.place,
        related=[window.loop.place],
        severity=Severity.ADVICE if left is None else Severity.WARNING,
        confidence=Confidence.LIKELY if left is None else Confidence.CERTAIN,
    )


def _last_turn(window: Window) -> str:
    """The condition that is true in the last iteration, in the user's names."""
    node = window.loop.node
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call) or not node.iter.args:
        return "this is the last batch"
    count = ast.unparse(node.iter.args[-1])
    if isinstance(node.target, ast.Tuple):
        return f"{ast.unparse(node.target.elts[0])} + 1 == len({ast.unparse(node.iter.args[0])})"
    return f"{ast.unparse(node.target)} + 1 == {count}"


def _left_over(window: Window) -> int | None:
    """How many batches remain, where both numbers are in the text."""
    node = window.loop.node
    called = node.iter if isinstance(node, ast.For) else None
    if not isinstance(called, ast.Call) or ast.unparse(called.func) != "range" or len(called.args) != 1:
        return None
    count = ast.unparse(called.args[0])
    return int(count) % int(window.every) if count.isdigit() and window.every.isdigit() else None


WORTH_SAYING = 0.05
"""Dropping less than this share of an epoch's batches is harmless."""


class _Remainder(NamedTuple):
    """A pattern in the windows of a run: after `period` of them with `every` backwards each, `left` are left over."""

    every: int
    period: int
    left: int
    windows: list[StepWindow]
    """The windows that began with left-over backwards."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Windows that began with the backwards left over from an epoch, once per epoch."""
    found = _remainder(record)
    if found is None:
        return
    batches = found.period * found.every + found.left
    clearings = [_cleared_after(window, found.left) for window in found.windows]
    evidence = [
        Evidence("batches per epoch", batches),
        Evidence("backward passes for each step", found.every),
        Evidence("left over", found.left),
    ]
    step = found.windows[-1].step
    if not any(clearings):
        yield rule.finding(
            f"{found.left} batches left over at the end of each epoch leaked into the next one: "
            f"{len(found.windows)} steps applied {found.every + found.left} gradients instead of "
            f"{found.every}.",
            cause=CAUSE,
            fix="Step on the last batch of an epoch too, or call zero_grad() at the start of each epoch.",
            subject=Subject.at("loop", "accumulation", found.windows[-1].backwards[0].place),
            place=step.place,
            related=[found.windows[-1].backwards[0].place],
            evidence=evidence,
        )
    elif all(clearings) and found.left >= WORTH_SAYING * batches:
        zero = clearings[-1]
        yield rule.finding(
            f"{found.left} of {batches} batches of each epoch were wasted: zero_grad() cleared their window "
            "before a step.",
            cause="Their gradients were computed and never applied; without shuffling, the same batches are lost "
            "every time.",
            fix="Step on the last batch of an epoch too.",
            subject=Subject.at("loop", "accumulation", found.windows[-1].backwards[0].place),
            place=zero.place if zero is not None else None,
            related=[step.place],
            evidence=evidence,
            severity=Severity.ADVICE,
        )


def _remainder(record: Record) -> _Remainder | None:
    """The pattern, if every window from the first step follows it and it repeats at least twice."""
    numbered = itertools.takewhile(lambda item: item[1].step.step == item[0], enumerate(step_windows(record)))
    windows = [window for _, window in numbered]
    counts = [len(window.backwards) for window in windows]
    every = usual(counts)
    longer = [index for index, count in enumerate(counts) if count != every]
    if every < 2 or len(counts) < STEADY or not longer or not longer[0] or not all(map(is_micro, windows)):
        return None
    period = longer[0]
    left = counts[period] - every
    regular = all(count == every + left * (index % period == 0 and index > 0) for index, count in enumerate(counts))
    if not 0 < left < every or not regular:
        return None
    ends_alike = len(counts) % period == 0 and _after_last_step(record, windows[-1]) == left
    if len(longer) < 2 and not ends_alike:
        return None
    return _Remainder(every, period, left, [windows[index] for index in longer])


def _after_last_step(record: Record, last: StepWindow) -> int:
    return sum(backward.step == last.step.step + 1 for backward in record.of(Backward))


def _cleared_after(window: StepWindow, left: int) -> ZeroGrad | None:
    """The zero_grad() after the left-over backwards."""
    pairs = list(window.between())
    events = pairs[left - 1][2] if len(pairs) >= left else []
    return next((event for event in events if isinstance(event, ZeroGrad) and event.cleared), None)
