"""G15 in a script: unsafe formulas that a gradient flows through."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.gradients.unsafe_numerics import rule
from unstuck.rules.gradients.unsafe_numerics.fixes import stable
from unstuck.rules.gradients.unsafe_numerics.forms import SAME_EDGE, Unsafe, operand, unsafe
from unstuck.source import Script
from unstuck.source.edits.edit import fix_with
from unstuck.source.facts import Called
from unstuck.source.flow import behind
from unstuck.source.reader import knowledge
from unstuck.source.values import Const, Group, Instance, Symbol, Tensor, Value, members

LOSS_FUNCTION = pattern(r"forward$|loss|criterion|objective|training_step", re.I)
PLAIN = frozenset("data batch rand randn randint zeros ones full arange linspace rebuilt".split())
"""Operations that make data: nothing that feeds them is trained."""


def find(script: Script) -> Iterator[Finding]:
    """Formulas that lead to a backward(), or in a forward or loss function where gradients are recorded."""
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
    unused: set[int] | None = None
    for called in script.facts.calls:
        made = called.result
        if isinstance(made, Tensor) and not made.cut and _is_recorded(called) and LOSS_FUNCTION.search(called.function):
            detached = _inside_detached(script) if detached is None else detached
            unused = _only_for_cuts(script) if unused is None else unused
            if called.node not in detached and id(made) not in unused and not called.function.startswith("test"):
                yield made


def _only_for_cuts(script: Script) -> set[int]:
    """ids of tensors that are known to be made for what stops the gradient, such as the distances of an `argmin`."""
    facts = script.facts
    cuts = [called.result for called in facts.calls if isinstance(called.result, Tensor) and called.result.cut]
    before = {id(value) for value in behind(Group([part for cut in cuts for part in cut.inputs]))}
    used = [called.value for called in facts.backwards if called.value is not None]
    return before - {id(value) for value in behind(Group([*facts.returned, *used]))}


def _inside_detached(script: Script) -> set[ast.AST]:
    """Everything inside the parentheses of `(...).detach()` and similar calls."""
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
    """May a gradient flow here: does the value come from something trained, or something unknown?"""
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
    """Does the module have weights, or may it, not being from torch.nn?"""
    return module is not None and (not module.kind.startswith("torch.nn.") or knowledge.has_weights(module))


def _is_recorded(called: Called) -> bool:
    """Does autograd record this call? Inside a `torch.autograd.Function` the gradient is written by hand."""
    bases = called.owner.cls.bases if called.owner is not None and called.owner.cls is not None else ()
    return called.recording and not any(isinstance(base, Symbol) and base.last == "Function" for base in bases)


def _finding(script: Script, tensor: Tensor, found: Unsafe) -> Finding:
    assert tensor.place is not None
    same_base = tensor.op not in ("log2", "log10")
    edits, safety = stable(script, tensor.place, found.stable) if found.stable and same_base else (None, "manual")
    return rule.finding(
        f"{found.form} on the way to the loss can become infinite or NaN.",
        cause=found.cause,
        fix=fix_with(found.fix, edits, safety),
        # A graph shows the operation but not where it is written.
        subject=Subject("call", SAME_EDGE.get(tensor.op, tensor.op)),
        place=tensor.place,
        severity=Severity.ADVICE if found.rare else None,
        confidence=Confidence.LIKELY,
        variant=found.variant,
    )
