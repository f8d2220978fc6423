"""M25: every entry of a ModuleList is the same module, so all of them share one set of weights."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from unstuck.events import ModelSeen, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.source.reader.scope import SourceFile

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script

rule = Rule(
    code="M25",
    name="repeated-module",
    title="a ModuleList that holds the same module several times, so its entries share one set of weights",
    severity=Severity.WARNING,
    needs=(ModelSeen,),
)

CAUSE = (
    "`[layer] * n` repeats a reference to one object. All entries share one set of weights: heads give identical "
    "answers, and layers cannot learn different things."
)
FIX = "Build each entry: nn.ModuleList([make_layer() for _ in range(n)]), or copy.deepcopy(layer) for each."
ENTRIES = Subject("module", "entries of a ModuleList")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """`nn.ModuleList([layer] * n)`, or a comprehension that names one layer again and again."""
    if "ModuleList" not in script.text:
        return
    file = SourceFile(script.path, script.lines)
    for node in ast.walk(script.tree):
        is_list = isinstance(node, ast.Call) and _last_name(node.func) == "ModuleList" and len(node.args) == 1
        if is_list and isinstance(node, ast.Call) and _repeats(node.args[0]):
            yield _finding("Every entry of this ModuleList is the same module.", file.place(node), ())


def _last_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _repeats(given: ast.expr) -> bool:
    if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Mult):
        lists = [side for side in (given.left, given.right) if isinstance(side, ast.List)]
        return len(lists) == 1 and len(lists[0].elts) == 1 and isinstance(lists[0].elts[0], ast.Name | ast.Call)
    if isinstance(given, ast.ListComp | ast.GeneratorExp) and isinstance(given.elt, ast.Name):
        named = {name.id for part in given.generators for name in ast.walk(part.target) if isinstance(name, ast.Name)}
        return given.elt.id not in named
    return False


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The models as they are."""
    yield from _in_models(setup.models)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The models of the run."""
    yield from _in_models(record.setup().models)


def _in_models(models: Iterable[ModelSeen]) -> Iterator[Finding]:
    for model in models:
        for module in model.modules:
            entries = int(module.numbers.get("repeated", 0))
            if entries:
                message = f"All {entries} entries of {module.name} in {model.model} are one and the same module."
                yield _finding(message, None, [Evidence("entries", entries), Evidence("distinct modules", 1)])


def _finding(message: str, place: Place | None, evidence: Iterable[Evidence]) -> Finding:
    return rule.finding(
        message,
        cause=CAUSE,
        fix=FIX,
        subject=ENTRIES,
        place=place,
        evidence=evidence,
        confidence=Confidence.LIKELY,
    )
