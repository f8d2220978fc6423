"""G13: accumulated gradients are divided at every micro-step, so early ones are divided again and again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unstuck.events import Clip, OptimizerStep, Unscale, ZeroGrad
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.accumulation import STEADY, StepWindow, Window, close, micro_windows, usual, windows
from unstuck.source import Script
from unstuck.source.reader.scope import SourceFile
from unstuck.source.trace import condition_key

rule = Rule(
    code="G13",
    name="gradients-rescaled",
    title="gradients divided by N at every micro-step, which compounds",
    severity=Severity.ERROR,
    explains=("O07", "O22", "G09"),
    needs=(OptimizerStep,),
)

RESCALES = pattern(r"\.grad\b[^\n]*([*/]=|\.(div_|mul_|true_divide_)\()")
CAUSE = (
    "backward() adds to gradients that are already divided, so the first of {every} micro-batches is divided "
    "{every} times and the last only once. The last micro-batches dominate the step."
)


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """`p.grad /= N` in a window of N, outside the condition that ends it."""
    if not RESCALES.search(script.text):
        return
    for window in windows(script):
        if window.every_iteration(ZeroGrad):
            continue  # nothing is added to these gradients afterwards
        for node in _in_every_iteration(window):
            if isinstance(node, ast.AugAssign | ast.Call) and _divides_by(node, window.every):
                place = SourceFile(script.path, script.lines).place(node, window.loop.place.function)
                yield rule.finding(
                    f"Gradients are divided by {window.every} in every iteration, but step() runs {window.when}.",
                    cause=CAUSE.format(every=window.every),
                    fix=f"Divide the loss instead: (loss / {window.every}).backward(); or divide the gradients once, "
                    "right before step().",
                    subject=Subject.at("loop", "accumulation", window.loop.place),
                    place=place,
                    related=[step.item.event.place for step in window.once(OptimizerStep)],
                )


def _in_every_iteration(window: Window) -> Iterator[ast.AST]:
    """Statements of the loop outside branches for the end of a window, up to an early `continue`."""
    waiting: list[ast.AST] = list(getattr(window.loop.node, "body", []))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.If) and _is_guard(node.test, window):
            if isinstance(node.body[-1], ast.Continue):
                waiting = [item for item in waiting if getattr(item, "lineno", 0) < node.lineno]
            continue
        yield node
        waiting = [*ast.iter_child_nodes(node), *waiting]


def _is_guard(test: ast.expr, window: Window) -> bool:
    """Is it the guard, or another condition on the iteration?"""
    return condition_key(test)[0] in window.guard or "%" in ast.unparse(test)


def _divides_by(node: ast.AugAssign | ast.Call, every: str) -> bool:
    target: ast.expr
    if isinstance(node, ast.AugAssign):
        target, value, divides = node.target, node.value, isinstance(node.op, ast.Div)
        multiplies = isinstance(node.op, ast.Mult)
    elif isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        target, value, divides = node.func.value, node.args[0], node.func.attr in ("div_", "true_divide_")
        multiplies = node.func.attr == "mul_"
    else:
        return False
    if not re.search(r"\.grad(\.data)?$", ast.unparse(target)):
        return False
    text = ast.unparse(value)
    return (divides and text == every) or (
        multiplies and re.fullmatch(rf"1(\.0*)? / {re.escape(every)}", text) is not None
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Gradients that shrink between two backwards, always by the same factor."""
    windows = micro_windows(record)
    shares = [share for window in windows for share in _left_between(window)]
    divisor = round(1 / shares[0]) if shares and shares[0] > 0 else 0
    if len(shares) < STEADY or divisor < 2 or not all(close(share, 1 / divisor) for share in shares):
        return
    every, backward = usual([len(window.backwards) for window in windows]), windows[-1].backwards[0]
    yield rule.finding(
        f"After each of {every} backward passes the accumulated gradients are divided by {divisor}.",
        cause=CAUSE.format(every=every),
        fix=f"Divide the loss instead: (loss / {every}).backward(); or divide the gradients once, right before step().",
        subject=Subject.at("loop", "accumulation", backward.place),
        place=backward.place,
        related=[windows[-1].step.place],
        evidence=[
            Evidence("backward passes for each step", every),
            Evidence("measurements between two of them", len(shares)),
            Evidence("share of the first micro-batch's gradient that a step uses", divisor ** -float(every)),
        ],
    )


def _left_between(window: StepWindow) -> Iterator[float]:
    """The share of the gradients' norm left from one backward to the next, unless a recorded event changed it."""
    for one, other, events in window.between():
        known = any(isinstance(event, Clip | ZeroGrad | Unscale) for event in events)
        if one.grad_norm and other.grad_norm_before is not None and not known:
            yield other.grad_norm_before / one.grad_norm
