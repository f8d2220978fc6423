"""G15: a formula on the way to the loss whose value or gradient can become infinite or NaN."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Backward, NonFinite, OperationFact, Place
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rule import Rule
from unstuck.rules.gradients._stable_forms import stable
from unstuck.rules.gradients._unsafe_forms import (
    LOG_ONE_MINUS,
    LOG_SIGMOID,
    LOG_SOFTMAX,
    LOG_SUM_EXP,
    Unsafe,
    operand,
    unsafe,
)
from unstuck.source.edits.edit import fix_with
from unstuck.source.flow import behind
from unstuck.source.reader import knowledge
from unstuck.source.values import Const, Group, Instance, Symbol, Tensor, Value, members

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.source import Script
    from unstuck.source.facts import Called

rule = Rule(
    code="G15",
    name="unsafe-numerics",
    title="log, sqrt, exp, division or acos in the loss that can become infinite or NaN",
    severity=Severity.WARNING,
    explains=("G10", "G08", "O24"),
    needs=(Backward,),
    only_in_text=("call",),
)

LOSS_FUNCTION = pattern(r"forward$|loss|criterion|objective|training_step", re.I)
SAME = {"rsqrt": "sqrt", "reciprocal": "div", "arccos": "acos", "arcsin": "asin", "log2": "log", "log10": "log"}
"""Operations with the same edge under several names."""
FORMULAS = {
    ("log", "softmax"): (LOG_SOFTMAX.form, LOG_SOFTMAX.fix),
    ("log", "sigmoid"): (LOG_SIGMOID.form, LOG_SIGMOID.fix),
    ("log", "rsub", "sigmoid"): (LOG_ONE_MINUS.form, LOG_ONE_MINUS.fix),
    ("log", "sum", "exp"): (LOG_SUM_EXP.form, LOG_SUM_EXP.fix),
    ("log",): ("log", "Keep its argument above 0 with clamp(min=1e-8), or stay in log space."),
    ("sqrt",): ("sqrt", "Add a small number under the root: sqrt(... + 1e-8)."),
    ("div",): ("a division", "Keep the denominator away from 0: clamp(min=1e-8), or add a small number."),
    ("exp",): ("exp", "Limit its argument with clamp(max=50), or compute in log space (logsumexp, softplus)."),
    ("acos",): ("acos", "Keep its argument inside: clamp(-1 + 1e-6, 1 - 1e-6), or use atan2."),
    ("asin",): ("asin", "Keep its argument inside: clamp(-1 + 1e-6, 1 - 1e-6), or use atan2."),
    ("pow",): ("a power below 1", "Add a small number to its base."),
}
"""By operation and the operations that made its input: its formula and how to make it safe."""
EDGES = {"acos": "1 or -1", "asin": "1 or -1", "exp": "the largest number of its type"}
PLAIN = frozenset("data batch rand randn randint zeros ones full arange linspace rebuilt".split())
"""Operations that make data: nothing that feeds them is trained."""


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
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
    for called in script.facts.calls:
        made = called.result
        if isinstance(made, Tensor) and not made.cut and _is_recorded(called) and LOSS_FUNCTION.search(called.function):
            detached = _inside_detached(script) if detached is None else detached
            if called.node not in detached:
                yield made


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
        subject=Subject("call", SAME.get(tensor.op, tensor.op)),
        place=tensor.place,
        severity=Severity.ADVICE if found.rare else None,
        confidence=Confidence.LIKELY,
    )


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Operations in the graph of a loss with inputs at their edge, and the one that made the first NaN."""
    told: set[str] = set()
    broken = next(record.of(NonFinite), None)
    for backward in record.of(Backward):
        earlier = broken if broken is not None and broken.step < backward.step else None
        for fact in backward.graph.operations if backward.graph is not None else ():
            name = SAME.get(fact.name, fact.name)
            # What comes after the first NaN may be its result, unless the operation can have made it.
            if (name,) in FORMULAS and name not in told and (earlier is None or name in _suspects(earlier)):
                told.add(name)
                yield _reached(name, fact, backward.place, backward.step, earlier)
    for event in record.of(NonFinite):
        name = next(iter(_suspects(event)), "") if len(event.suspects) == 1 else ""
        if (name,) in FORMULAS and name not in told and event.low is not None:
            fact = OperationFact(name, low=event.low, high=event.high)
            yield _reached(name, fact, event.place, event.step, event)


def _suspects(event: NonFinite) -> set[str]:
    """The operations that can have made it."""
    names = [node.partition("Backward")[0].lower() for node in event.suspects]
    return {SAME.get(name, name) for name in names}


def _reached(
    name: str, fact: OperationFact, place: Place | None, step: int, broken: NonFinite | None = None
) -> Finding:
    chains = [chain for chain in FORMULAS if (name, *fact.behind)[: len(chain)] == chain]
    form, fix = FORMULAS[max(chains, key=len)]
    low, high = ("infinity" if end is None else f"{end:.3g}" for end in (fact.low, fact.high))
    span = f"{low} to {high}"
    what = {"div": "denominators", "exp": "results"}.get(name, "numbers")
    edge = f"reached its edge, {EDGES.get(name, '0')}, at step {step + 1}"
    if broken is not None and broken.step == step:
        edge = f"produced a NaN or infinity at step {step + 1}"
    elif broken is not None:
        edge = f"{edge}, and may have caused the non-finite value at step {broken.step + 1}"
    return rule.finding(
        f"{form} on the way to the loss {edge}: its {what} ranged from {span}.",
        cause="There its value or slope is not finite, and one such number makes every gradient before it NaN.",
        fix=fix,
        subject=Subject("call", name),
        place=place,
        evidence=[Evidence(what, span), Evidence("step", step + 1)],
    )
