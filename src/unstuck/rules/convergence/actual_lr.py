"""O23: the learning rate that is really used: zero, or another one than the one that is printed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import OptimizerStep
from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.convergence import _rates_in_run as rates_in_run
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.reader.scope import SourceFile
from unstuck.source.trace import events_in
from unstuck.source.values import Const, Instance, Value, alternatives

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script
    from unstuck.source.facts import Called

rule = Rule(
    code="O23",
    name="actual-lr",
    title="a learning rate of zero, one that its schedule does not reach, or get_lr() printed in its place",
    severity=Severity.ERROR,
    explains=("O01", "O07", "O22", "R08"),
    needs=(OptimizerStep,),
)

RECURSIVE = frozenset(
    "StepLR MultiStepLR ExponentialLR CosineAnnealingLR MultiplicativeLR PolynomialLR LinearLR ConstantLR".split()
)
"""Schedulers whose get_lr() computes the next rate out of the present one, so that it is wrong outside step()."""
ABSTRACT = frozenset({"ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"})
RATE_SET_LATER = pattern(r"""["']lr["']|param_groups|OneCycle|Cyclic|\.lr\s*=|lr_scale|set_lr""")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """get_lr() of a scheduler of torch outside its class, and lr=0 for an optimizer that steps."""
    if "get_lr" in script.text:
        yield from _printed(script)
    if re.search(r"\blr\s*=\s*0(\.0*)?\s*[,)]", script.text) and not RATE_SET_LATER.search(script.text):
        yield from _zero(script)


def _printed(script: Script) -> Iterator[Finding]:
    read = {id(call.node): call for call in script.facts.calls}
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Call) and not node.args and ast.unparse(node.func).endswith(".get_lr"):
            kinds = _kinds(script, node, read.get(id(node)))
            if kinds and all(kinds):
                yield _not_in_use(script, node, kinds)


def _kinds(script: Script, node: ast.Call, call: Called | None) -> list[str]:
    """The classes of the scheduler that is asked. Inside an f-string its name tells which one it is."""
    if call is not None:
        return [_kind(option) for option in alternatives(call.receiver)] if call.receiver is not None else []
    name = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    return [_kind(made.scheduler) for made in script.facts.schedulers if made.scheduler.label == name]


def _not_in_use(script: Script, node: ast.Call, kinds: list[str]) -> Finding:
    kind, place = kinds[0], SourceFile(script.path, script.lines).place(node)
    wrong, raises = any(name in RECURSIVE for name in kinds), all(name in ABSTRACT for name in kinds)
    cause = f"{kind} computes its value anew; get_last_lr() is the rate that the optimizer uses."
    if wrong:
        cause = f"{kind} derives the next rate from the present one there, so outside step() it is another one."
    if raises:
        cause = f"{kind} has no get_lr() of its own and raises NotImplementedError."
    return rule.finding(
        "get_lr() is not the learning rate in use.",
        cause=cause,
        fix=fix_with("Call get_last_lr() instead.", Editor(script).rename_callee(node, "get_last_lr"), "safe"),
        subject=Subject("call", f"get_lr at {place}"),
        place=place,
        severity=Severity.ERROR if raises else Severity.WARNING if wrong else Severity.ADVICE,
    )


def _kind(value: Value) -> str:
    """The class of a scheduler of torch, or empty."""
    known = isinstance(value, Instance) and value.cls is None and value.kind.startswith("torch.optim.lr_scheduler.")
    return value.last if known and isinstance(value, Instance) else ""


def _zero(script: Script) -> Iterator[Finding]:
    stepped = {id(item.subject) for item in events_in(script.facts.trace) if isinstance(item.event, OptimizerStep)}
    for made in script.facts.optimizers:
        rate = made.optimizer.kwargs.get("lr")
        zero = isinstance(rate, Const) and isinstance(rate.value, int | float) and rate.value == 0
        if zero and id(made.optimizer) in stepped and id(made.optimizer) not in script.facts.escaped:
            name = made.optimizer.label or made.optimizer.last
            yield rule.finding(
                f"{name} has a learning rate of 0.",
                cause="Every update is multiplied by the rate, so step() changes nothing, and a schedule of 0 is 0.",
                fix="Give it a positive learning rate.",
                subject=Subject("optimizer", name),
                place=made.place,
                confidence=Confidence.CERTAIN,
            )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The rates that steps really used."""
    for trouble in rates_in_run.troubles(record):
        yield rule.finding(
            trouble.message,
            cause=trouble.cause,
            fix=trouble.fix,
            subject=Subject(*trouble.subject),
            place=trouble.place,
            related=trouble.related,
            evidence=trouble.evidence,
            severity=trouble.severity,
        )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The rate stays where it begins."""
    from unstuck.interventions import NoSchedule

    yield (NoSchedule(),)
