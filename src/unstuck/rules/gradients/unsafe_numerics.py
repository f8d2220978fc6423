"""G15: a formula on the way to the loss whose value or gradient is not finite at an edge it can reach."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Finding, Severity, Subject, Witness
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.gradients._stable_forms import stable
from unstuck.rules.gradients._unsafe_forms import Unsafe, operand, unsafe
from unstuck.source import knowledge
from unstuck.source.edit import fix_with
from unstuck.source.flow import behind
from unstuck.source.values import Const, Group, Instance, Symbol, Tensor, Value, members

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

rule = Rule(
    code="G15",
    name="unsafe-numerics",
    title="log, sqrt, exp, division or acos on the loss path that can reach an edge where it is not finite",
    severity=Severity.WARNING,
    explains=("G10", "G08", "O24"),
)

LOSS_FUNCTION = pattern(r"forward$|loss|criterion|objective|training_step", re.I)
PLAIN = frozenset("data batch rand randn randint zeros ones full arange linspace rebuilt".split())
"""Operations that make data: nothing behind them is trained, whatever sizes they were given."""


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Formulas behind a backward(), or in a forward or loss function where gradients are recorded."""
    seen: set[int] = set()
    for tensor in _on_loss_path(script):
        found = unsafe(tensor) if id(tensor) not in seen else None
        seen.add(id(tensor))
        if found is not None and tensor.place is not None and _learns(operand(tensor)):
            yield _finding(script, tensor, found)


def _on_loss_path(script: Script) -> Iterator[Tensor]:
    for value in behind(Group([call.value for call in script.facts.backwards if call.value is not None])):
        if isinstance(value, Tensor) and not value.cut:
            yield value
    detached: set[ast.AST] | None = None
    for called in script.facts.calls:
        made = called.result
        if isinstance(made, Tensor) and not made.cut and _is_recorded(called) and LOSS_FUNCTION.search(called.function):
            detached = _inside_detached(script) if detached is None else detached
            if called.node not in detached:
                yield made


def _inside_detached(script: Script) -> set[ast.AST]:
    """Everything written inside the parentheses of `(...).detach()` and the like."""
    inside: set[ast.AST] = set()
    for called in script.facts.calls:
        made, function = called.result, called.node.func
        if (
            isinstance(made, Tensor)
            and made.cut
            and called.name.startswith(".")
            and isinstance(function, ast.Attribute)
        ):
            inside.update(ast.walk(function.value))
    return inside


def _learns(value: Value) -> bool:
    """May a gradient have to pass here: is something trained behind the value, or something unknown?"""
    waiting, seen = [value], set[int]()
    while waiting:
        for item in members(waiting.pop()):
            if id(item) in seen or isinstance(item, Const):
                continue
            seen.add(id(item))
            if not isinstance(item, Tensor) or item.leaf or item.op == "requires_grad_" or _has_weights(item.module):
                return True
            waiting += () if item.cut or item.op in PLAIN else item.inputs
    return False


def _has_weights(module: Instance | None) -> bool:
    """Does the module hold weights, or may it, being none of torch.nn?"""
    return module is not None and (not module.kind.startswith("torch.nn.") or knowledge.has_weights(module))


def _is_recorded(called: Called) -> bool:
    """Does autograd follow this call? Inside a `torch.autograd.Function` the gradient is written by hand."""
    bases = called.owner.cls.bases if called.owner is not None and called.owner.cls is not None else ()
    return called.recording and not any(isinstance(base, Symbol) and base.last == "Function" for base in bases)


def _finding(script: Script, tensor: Tensor, found: Unsafe) -> Finding:
    assert tensor.place is not None
    same_base = tensor.op not in ("log2", "log10")
    edits, safety = stable(script, tensor.place, found.stable) if found.stable and same_base else (None, "manual")
    return rule.finding(
        Witness.SOURCE,
        f"{found.form} on the way to the loss is not finite at an edge it can reach.",
        cause=found.cause,
        fix=fix_with(found.fix, edits, safety),
        subject=Subject("call", f"{tensor.op} at {tensor.place}"),
        place=tensor.place,
        severity=Severity.ADVICE if found.rare else None,
        confidence=Confidence.LIKELY,
    )
