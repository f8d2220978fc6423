"""O05, dropout-always-on: dropout in a forward pass that train() and eval() do not reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unstuck.events import ModeChange
from unstuck.findings import Finding, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.wrong_mode import Mode, rule
from unstuck.rules.shared.modes import MEANT_RANDOM
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.facts import Called
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import events_in
from unstuck.source.values import find_method

Method = ast.FunctionDef | ast.AsyncFunctionDef

FUNCTIONS = pattern(r"^torch\.nn\.functional\.dropout[123]?d?$")
MODULES = pattern(r"^torch\.nn\.Dropout[123]?d?$")
FORWARD = pattern(r"forward|^encode|^decode")
FUNCTION_CAUSE = "Its training argument is True by default and does not see model.eval(), so predictions are random."
MODULE_CAUSE = (
    "A module created in forward() is new at every call, in train mode, and not part of the model that eval() switches."
)


def find(script: Script) -> Iterator[Finding]:
    """Dropout that stays on in any mode, each call once."""
    editor = Editor(script)
    seen: set[ast.AST] = set()
    for called in script.facts.calls:
        is_module = MODULES.match(called.name) is not None
        if called.node in seen or not (is_module or FUNCTIONS.match(called.name)):
            continue
        seen.add(called.node)
        method = _forward_around(called)
        if method is None or _is_meant(script, called, method):
            continue
        if not (_is_used_in_place(script, called, method) if is_module else _is_without_mode(called)):
            continue
        name = ast.unparse(called.node.func)
        where = f"{called.owner.last}.{method.name}()" if called.owner else f"{method.name}()"
        training = f"{method.args.args[0].arg}.training"
        if is_module:
            fix = f"Create it once in __init__, or use the functional dropout with training={training}."
            edits = _functional(editor, called, method, name, training)
        else:
            fix = f"Pass training={training}."
            edits = editor.set_keyword(called.place, "training", training)
        yield rule.finding(
            f"{name} in {where} stays on in eval mode.",
            cause=MODULE_CAUSE if is_module else FUNCTION_CAUSE,
            fix=fix_with(fix, edits, "safe"),
            subject=Subject.at("call", name, called.place),
            place=called.place,
            variant=Mode.DROPOUT_ALWAYS_ON,
        )


def _functional(editor: Editor, called: Called, method: Method, name: str, training: str) -> Edits | None:
    """`nn.Dropout(p)(x)` as `nn.functional.dropout(x, p, training=self.training)`."""
    outer, made = _parents(method).get(called.node), called.node
    prefix, _, kind = name.rpartition(".")
    if not isinstance(outer, ast.Call) or len(outer.args) != 1 or outer.keywords or not prefix:
        return None
    given = [editor.text_of(item) for item in (*made.args, *made.keywords)]
    if len(given) > 1 or not all(given):
        return None
    arguments = ", ".join([str(editor.text_of(outer.args[0])), *map(str, given), f"training={training}"])
    return editor.replace(outer, f"{prefix}.functional.{kind.lower()}({arguments})")


def _forward_around(called: Called) -> Method | None:
    """The forward method of a module that contains the call."""
    owner = called.owner
    if owner is None or owner.cls is None or not FORWARD.search(called.function) or not knowledge.is_module(owner):
        return None
    found = find_method(owner.cls, called.function)
    return found[0] if found and found[0].args.args and called.node in _parents(found[0]) else None


def _is_without_mode(called: Called) -> bool:
    unsure = any(keyword.arg is None for keyword in called.node.keywords)
    return not unsure and "training" not in called.kwargs and len(called.args) < 3


def _is_meant(script: Script, called: Called, method: Method) -> bool:
    """Is it on purpose, by its names or by a condition around it, or with a share that may be 0?"""
    node = called.node
    position = 0 if called.name.startswith("torch.nn.Dropout") else 1
    named = (keyword.value for keyword in node.keywords if keyword.arg == "p")
    share = node.args[position] if position < len(node.args) else next(named, None)
    owner = called.owner.last if called.owner else ""
    line = script.lines[called.place.line - 1] if called.place.path == script.path else ""
    if not _is_fixed(share, method) or MEANT_RANDOM.search(f"{owner} {method.name} {line}"):
        return True
    parents = _parents(method)
    around: ast.AST | None = node
    while around is not None and around is not method:
        test = around.test if isinstance(around, ast.If | ast.IfExp | ast.While) else None
        if test is not None and not _tests_share(test, share):
            return True
        around = parents.get(around)
    # `if not self.training: return x` comes before it.
    return any(
        isinstance(item, ast.If) and "train" in ast.unparse(item.test) and item.lineno < node.lineno
        for item in ast.walk(method)
    )


def _is_fixed(share: ast.expr | None, method: Method, depth: int = 0) -> bool:
    """Is the share nonzero and the same in train and eval mode? Not if it is chosen here or by the caller."""
    if share is None or isinstance(share, ast.Constant):
        return share is None or bool(share.value)
    if "train" in ast.unparse(share) or any(isinstance(part, ast.IfExp) for part in ast.walk(share)):
        return False
    names = {part.id for part in ast.walk(share) if isinstance(part, ast.Name)}
    parameters = {argument.arg for argument in (*method.args.args[1:], *method.args.kwonlyargs)}
    stored = [node for node in ast.walk(method) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    assigned = [node for node in ast.walk(method) if isinstance(node, ast.Assign)]
    local = names & {node.id for node in stored}
    values = [node.value for node in assigned if any(dotted(target) in local for target in node.targets)]
    once = len(values) == len(local) == sum(node.id in local for node in stored)
    return (
        not names & parameters and once and depth < 3 and all(_is_fixed(value, method, depth + 1) for value in values)
    )


def _tests_share(test: ast.expr, share: ast.expr | None) -> bool:
    """Is it `if self.p > 0` around a dropout of self.p, which does not test the mode?"""
    tested = test.left if isinstance(test, ast.Compare) else test
    return isinstance(share, ast.Attribute) and ast.unparse(tested) == ast.unparse(share)


def _is_used_in_place(script: Script, called: Called, method: Method) -> bool:
    """Is it `nn.Dropout(p)(x)`, or a local name for it that nothing switches?"""
    parent = _parents(method).get(called.node)
    if isinstance(parent, ast.Call):
        return parent.func is called.node
    switched = (item.subject for item in events_in(script.facts.trace) if isinstance(item.event, ModeChange))
    local = isinstance(parent, ast.Assign) and all(isinstance(target, ast.Name) for target in parent.targets)
    return local and not any(subject is called.result for subject in switched)


def _parents(method: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(method) for child in ast.iter_child_nodes(node)}
