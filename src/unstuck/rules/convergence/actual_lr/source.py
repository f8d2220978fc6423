"""O23 in the source: get_lr() of torch's schedulers outside their classes, and lr=0 for an optimizer that steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unstuck.events import OptimizerStep
from unstuck.findings import Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.actual_lr import USE_LAST_LR, USE_POSITIVE, ZERO, Rate, derives, rule
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.facts import Called
from unstuck.source.reader.scope import SourceFile
from unstuck.source.trace import events_in
from unstuck.source.values import Const, Instance, Value, alternatives

RECURSIVE = frozenset(
    "StepLR MultiStepLR ExponentialLR CosineAnnealingLR MultiplicativeLR PolynomialLR LinearLR ConstantLR".split()
)
"""Schedulers whose get_lr() derives the next learning rate from the current one, so it is wrong outside step()."""
ABSTRACT = frozenset({"ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"})
SET_LATER = pattern(r"""["']lr["']|param_groups|OneCycle|Cyclic|\.lr\s*=|lr_scale|set_lr""")


def find(script: Script) -> Iterator[Finding]:
    """Both variants that the text can show."""
    if "get_lr" in script.text:
        read = {id(call.node): call for call in script.facts.calls}
        for node in ast.walk(script.tree):
            if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func).endswith(".get_lr"):
                kinds = _kinds(script, node, read.get(id(node)))
                if kinds and all(kinds):
                    yield _get_lr(script, node, kinds)
    if re.search(r"\blr\s*=\s*0(\.0*)?\s*[,)]", script.text) and not SET_LATER.search(script.text):
        yield from _zero(script)


def _kinds(script: Script, node: ast.Call, call: Called | None) -> list[str]:
    """The possible classes of the scheduler. Inside an f-string its name tells which one it is."""
    if call is not None:
        return [_kind(option) for option in alternatives(call.receiver)] if call.receiver is not None else []
    name = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return [_kind(made.scheduler) for made in script.facts.schedulers if made.scheduler.label == name]


def _kind(value: Value) -> str:
    """The class of a scheduler of torch, or empty."""
    known = isinstance(value, Instance) and value.cls is None and value.kind.startswith("torch.optim.lr_scheduler.")
    return value.last if known and isinstance(value, Instance) else ""


def _get_lr(script: Script, node: ast.Call, kinds: list[str]) -> Finding:
    kind, place = kinds[0], SourceFile(script.path, script.lines).place(node)
    cause, severity = f"{kind} computes its value again; get_last_lr() is what the optimizer uses.", Severity.ADVICE
    if any(name in RECURSIVE for name in kinds):
        cause, severity = derives(kind), Severity.WARNING
    if all(name in ABSTRACT for name in kinds):
        cause, severity = f"{kind} does not implement get_lr() and raises NotImplementedError.", Severity.ERROR
    return rule.finding(
        "get_lr() is not the learning rate in use.",
        cause=cause,
        fix=fix_with(USE_LAST_LR, Editor(script).rename_callee(node, "get_last_lr"), "safe"),
        subject=Subject.at("call", "get_lr", place),
        place=place,
        severity=severity,
        variant=Rate.GET_LR,
    )


def _zero(script: Script) -> Iterator[Finding]:
    stepped = {id(item.subject) for item in events_in(script.facts.trace) if isinstance(item.event, OptimizerStep)}
    for made in script.facts.optimizers:
        rate = made.optimizer.kwargs.get("lr")
        zero = isinstance(rate, Const) and isinstance(rate.value, int | float) and rate.value == 0
        untouched = id(made.optimizer) not in script.facts.escaped and not _is_passed_on(script, made.optimizer)
        if zero and id(made.optimizer) in stepped and untouched:
            name = made.optimizer.label or made.optimizer.last
            yield rule.finding(
                f"{name} has a learning rate of 0.",
                cause=ZERO,
                fix=USE_POSITIVE,
                subject=Subject("optimizer", name),
                place=made.place,
                variant=Rate.ZERO,
            )


def _is_passed_on(script: Script, optimizer: Instance) -> bool:
    """Is it given to something that is not torch's, such as a schedule of the user's, which may set the rate?"""
    return any(
        any(optimizer in alternatives(value) for value in (*call.args, *call.kwargs.values()))
        for call in script.facts.calls
        if not call.name.startswith("torch.")
    )
