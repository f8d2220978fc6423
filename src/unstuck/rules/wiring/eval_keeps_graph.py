"""M06: an evaluation that records graphs nobody uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unstuck.events import Backward, Evaluated, Forward, ModeChange, Place
from unstuck.findings import Evidence, Finding, Fix, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import modes
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.facts import Called
from unstuck.source.flow import behind
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import Happened, Located, Loop, events_in, located
from unstuck.source.values import Const, Instance, Value, alternatives, root

rule = Rule(
    code="M06",
    name="eval-keeps-graph",
    title="evaluation without no_grad() or inference_mode()",
    severity=Severity.WARNING,
    hygiene=True,
    needs=(Forward,),
)

CAUSE = (
    "Every activation is kept for a backward() that never comes, so the evaluation is slower, takes far more "
    "memory and runs out of it at batch sizes that would fit."
)
NEEDS_GRADIENTS = (
    "torch.autograd.grad",
    "torch.autograd.functional.",
    "torch.func.",
    ".requires_grad_",
    ".retain_grad",
)
SHOW_PROGRESS = frozenset("tqdm track progress_bar enumerate list reversed".split())
"""Calls that a `for` may wrap around a range."""
HARMLESS_DECORATORS = frozenset("staticmethod classmethod property wraps main command option argument record".split())


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Loops that run a known model in an evaluation, with recording on and no backward."""
    if "volatile" in script.text or not script.facts.calls:
        return
    told: set[tuple[str, str, str]] = set()
    switches = [item for item in events_in(script.facts.trace) if isinstance(item.event, ModeChange)]
    for item in located(script.facts.trace):
        event = item.item.event
        if not isinstance(event, Forward) or not event.output_requires_grad or event.place is None:
            continue
        matter = (event.place.path, event.place.function, event.model)
        if matter not in told and _evaluates(switches, item) and not _wants_gradients(script, item):
            told.add(matter)
            yield _finding(script, event, item.loops[-1])


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Consecutive calls of a model in evaluation whose graphs were dropped unused."""
    by_place: dict[Place, list[Evaluated]] = {}
    for event in record.of(Evaluated):
        if event.unused > 1 and event.place is not None and _is_evaluation(event):
            by_place.setdefault(event.place, []).append(event)
    for place, events in by_place.items():
        unused = sum(event.unused for event in events)
        yield rule.finding(
            f"{events[0].model} was evaluated while gradients were recorded: the graphs of {unused} calls were "
            "built and dropped unused.",
            cause=CAUSE,
            fix="Evaluate under torch.no_grad() or torch.inference_mode().",
            subject=Subject.at("call", "evaluation", place),
            place=place,
            evidence=[Evidence("unused graphs", unused)],
        )


def _is_evaluation(event: Evaluated) -> bool:
    named = event.place is not None and event.place.function and modes.says_evaluation(event.place.function)
    return not event.training_mode or bool(named)


def _evaluates(switches: list[Happened], item: Located) -> bool:
    model, place = item.item.subject, item.item.event.place
    if not item.loops or not isinstance(model, Instance) or not knowledge.has_weights(model) or place is None:
        return False
    loop = item.loops[-1]
    if not _over_data(loop):
        return False
    if any(isinstance(inner.event, Backward) for inner in events_in(loop.body)):
        return False
    return _in_eval_mode(switches, item) or (
        modes.over_evaluation_data(loop) and (not place.function or modes.says_evaluation(place.function))
    )


def _over_data(loop: Loop) -> bool:
    """A `for` over data, not over numbers: playing games to the end keeps little."""
    if not isinstance(loop.node, ast.For | ast.AsyncFor):
        return False
    over: ast.expr = loop.node.iter
    while isinstance(over, ast.Call) and over.args and dotted(over.func).rpartition(".")[2] in SHOW_PROGRESS:
        over = over.args[0]
    return not (isinstance(over, ast.Call) and dotted(over.func).endswith("range") and len(over.args) < 3)


def _in_eval_mode(switches: list[Happened], item: Located) -> bool:
    """The last switch of the model's mode before the call, in the same function, was eval()."""
    place, model = item.item.event.place, item.item.subject
    before = [other.event for other in switches if other.subject is model and other.time < item.item.time]
    last = before[-1] if before else None
    if not isinstance(last, ModeChange) or last.place is None or place is None:
        return False
    return not last.training and last.place.function == place.function


def _wants_gradients(script: Script, item: Located) -> bool:
    """Is the graph used after all, or is there none because the model is frozen?"""
    facts, place, model = script.facts, item.item.event.place, item.item.subject
    if _is_decorated(script, place) or _runs_over_models(script, item):
        return True
    if any(_asks(called, place) for called in facts.calls):
        return True
    if any(set_.name == "requires_grad" and set_.value == Const(True) for set_ in facts.attributes):
        return True
    frozen = [fact.owner for fact in facts.frozen if not fact.trainable]
    if isinstance(model, Instance) and any(_concerns(owner, model) for owner in frozen):
        return True
    results = {id(option) for called in facts.calls if called.place == place for option in alternatives(called.result)}
    return any(id(value) in results for given in _given_to_backward(script) for value in behind(given))


def _is_decorated(script: Script, place: Place | None) -> bool:
    """May a decorator of the function disable recording?"""
    function = _function_around(script, place) if place is not None else None
    names = [dotted(getattr(item, "func", item)) for item in function.decorator_list] if function is not None else []
    written = {node.name: node for node in script.tree.body if isinstance(node, ast.FunctionDef)} if names else {}
    for name in names:
        own = written.get(name)
        text = "\n".join(script.lines[own.lineno - 1 : own.end_lineno]) if own is not None else "no_grad"
        if name.rpartition(".")[2] not in HARMLESS_DECORATORS and ("grad" in text or "inference_mode" in text):
            return True
    return False


def _runs_over_models(script: Script, item: Located) -> bool:
    """`for net, loss in zip(nets, losses)` iterates over models, not data."""
    target = getattr(item.loops[-1].node, "target", None)
    names = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)} if target is not None else set()
    here = (called.node.func for called in script.facts.calls if called.place == item.item.event.place)
    return any(isinstance(function, ast.Name) and function.id in names for function in here)


def _asks(called: Called, place: Place | None) -> bool:
    if not called.name.startswith(NEEDS_GRADIENTS) and "requires_grad" not in called.kwargs:
        return False
    return called.name.startswith("torch.autograd.grad") or (place is not None and called.function == place.function)


def _concerns(owner: Value, model: Instance) -> bool:
    return any(not isinstance(option, Instance) or root(option) is root(model) for option in alternatives(owner))


def _given_to_backward(script: Script) -> Iterator[Value]:
    return (item.value for item in script.facts.backwards if item.value is not None)


def _finding(script: Script, event: Forward, loop: Loop) -> Finding:
    place = event.place
    assert place is not None
    where = f" in {place.function}()" if place.function else ""
    return rule.finding(
        f"{event.model} is evaluated{where} while gradients are recorded.",
        cause=CAUSE,
        fix=_fix(script, place),
        subject=Subject.at("call", "evaluation", place),
        place=place,
        related=(loop.place,),
    )


def _fix(script: Script, place: Place) -> Fix:
    function = _function_around(script, place)
    if function is None:
        return Fix("Put the loop under `with torch.no_grad():`.")
    text = "\n".join(script.lines[function.lineno - 1 : function.end_lineno])
    edits = None
    if "backward" not in text and not function.decorator_list and "import torch\n" in script.text:
        edits = Editor(script).insert_before(function, "@torch.no_grad()")
    return fix_with("Decorate the function with @torch.no_grad().", edits, "unsafe")


def _function_around(script: Script, place: Place) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function around a place of this file."""
    if place.path != script.path or not place.function:
        return None
    functions = (node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    around = [node for node in functions if node.lineno <= place.line <= (node.end_lineno or 0)]
    return max(around, key=lambda node: node.lineno, default=None)
