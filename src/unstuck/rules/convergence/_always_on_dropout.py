"""Dropout in a forward pass that never hears of train() and eval()."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import ModeChange, Place
from unstuck.lazy import pattern
from unstuck.source.edits.edit import Editor, Edits
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import dotted
from unstuck.source.trace import events_in
from unstuck.source.values import find_method

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

FUNCTIONS = pattern(r"^torch\.nn\.functional\.dropout[123]?d?$")
MODULES = pattern(r"^torch\.nn\.Dropout[123]?d?$")
FORWARD = pattern(r"forward|^encode|^decode")
ON_PURPOSE = pattern(r"(?i)\bmc|_mc|monte|bayes|uncertain|always|stochastic|augment|corrupt|noise|prenet|simcse")
"""Words that say that dropout is meant to stay on."""
FUNCTION_CAUSE = (
    "Its argument training is True by default and knows nothing of model.eval(), so predictions are random."
)
MODULE_CAUSE = (
    "A module made in forward() is new at every call, in train mode, and never part of the model that eval() switches."
)


class Spot(msgspec.Struct, eq=False):
    """One dropout call that no mode switches."""

    called: Called
    function: ast.FunctionDef | ast.AsyncFunctionDef
    module: bool

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.called.place

    @property
    def name(self) -> str:
        """As it is written."""
        return ast.unparse(self.called.node.func)

    @property
    def where(self) -> str:
        """The method it stands in."""
        owner = self.called.owner
        return f"{owner.last}.{self.function.name}()" if owner else f"{self.function.name}()"

    @property
    def cause(self) -> str:
        """Why it stays on."""
        return MODULE_CAUSE if self.module else FUNCTION_CAUSE

    @property
    def fix(self) -> str:
        """What to write instead."""
        if self.module:
            return f"Make it once in __init__, or use the functional dropout with training={self._mode}."
        return f"Pass training={self._mode}."

    @property
    def _mode(self) -> str:
        return f"{self.function.args.args[0].arg}.training"

    def edits(self, editor: Editor) -> Edits | None:
        """The text of the fix."""
        if not self.module:
            return editor.set_keyword(self.place, "training", self._mode)
        outer = _parents(self.function).get(self.called.node)
        made = self.called.node
        prefix = self.name.rpartition(".")[0]
        if not isinstance(outer, ast.Call) or len(outer.args) != 1 or outer.keywords or not prefix:
            return None
        given = [editor.text_of(item) for item in (*made.args, *made.keywords)]
        if len(given) > 1 or not all(given):
            return None
        arguments = ", ".join([str(editor.text_of(outer.args[0])), *map(str, given), f"training={self._mode}"])
        return editor.replace(outer, f"{prefix}.functional.{functional_name(self.name)}({arguments})")


def functional_name(module: str) -> str:
    """`dropout2d` for `nn.Dropout2d`."""
    return module.rpartition(".")[2].lower()


def always_on(script: Script) -> Iterator[Spot]:
    """Dropout that stays on whatever the mode, each call once."""
    seen: set[ast.AST] = set()
    for called in script.facts.calls:
        module = MODULES.match(called.name) is not None
        if called.node in seen or not (module or FUNCTIONS.match(called.name)):
            continue
        seen.add(called.node)
        function = _method_around(called)
        if function is None or _meant(script, called, function):
            continue
        if _used_in_place(script, called, function) if module else _without_mode(called):
            yield Spot(called, function, module)


def _method_around(called: Called) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The forward pass of a module that it stands in."""
    owner = called.owner
    if owner is None or owner.cls is None or not FORWARD.search(called.function) or not knowledge.is_module(owner):
        return None
    found = find_method(owner.cls, called.function)
    return found[0] if found and found[0].args.args and called.node in _parents(found[0]) else None


def _without_mode(called: Called) -> bool:
    unsure = any(keyword.arg is None for keyword in called.node.keywords)
    return not unsure and "training" not in called.kwargs and len(called.args) < 3


def _meant(script: Script, called: Called, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Dropped on purpose, by its names or by a condition around it, or with a share that may be 0."""
    share = _share(called.node, 0 if called.name.startswith("torch.nn.Dropout") else 1)
    owner = called.owner.last if called.owner else ""
    line = script.lines[called.place.line - 1] if called.place.path == script.path else ""
    if not _is_fixed(share, function) or ON_PURPOSE.search(f"{owner} {function.name} {line}"):
        return True
    parents = _parents(function)
    node: ast.AST | None = called.node
    while node is not None and node is not function:
        test = node.test if isinstance(node, ast.If | ast.IfExp | ast.While) else None
        if test is not None and not _asks_for_share(test, share):
            return True
        node = parents.get(node)
    return _leaves_early(function, called.node)


def _share(node: ast.Call, position: int) -> ast.expr | None:
    """What was given as `p`, if anything was."""
    named = (keyword.value for keyword in node.keywords if keyword.arg == "p")
    return node.args[position] if position < len(node.args) else next(named, None)


def _is_fixed(share: ast.expr | None, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int = 0) -> bool:
    """Is the share the same in train and in eval mode, and not 0? Not if it is chosen here or by the caller."""
    if share is None or isinstance(share, ast.Constant):
        return share is None or bool(share.value)
    if "train" in ast.unparse(share) or any(isinstance(part, ast.IfExp) for part in ast.walk(share)):
        return False
    names = {part.id for part in ast.walk(share) if isinstance(part, ast.Name)}
    given = {argument.arg for argument in (*function.args.args[1:], *function.args.kwonlyargs)}
    stored = [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    assigned = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
    local = names & {node.id for node in stored}
    values = [node.value for node in assigned if any(dotted(target) in local for target in node.targets)]
    once = len(values) == len(local) == sum(node.id in local for node in stored)
    return not names & given and once and depth < 3 and all(_is_fixed(value, function, depth + 1) for value in values)


def _asks_for_share(test: ast.expr, share: ast.expr | None) -> bool:
    """`if self.p > 0` around a dropout of self.p asks for no mode."""
    asked = test.left if isinstance(test, ast.Compare) else test
    return isinstance(share, ast.Attribute) and ast.unparse(asked) == ast.unparse(share)


def _leaves_early(function: ast.FunctionDef | ast.AsyncFunctionDef, node: ast.AST) -> bool:
    """`if not self.training: return x` stands somewhere above."""
    return any(
        isinstance(item, ast.If) and "train" in ast.unparse(item.test) and item.lineno < getattr(node, "lineno", 0)
        for item in ast.walk(function)
    )


def _used_in_place(script: Script, called: Called, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """`nn.Dropout(p)(x)`, or a local name for it that nobody switches."""
    parent = _parents(function).get(called.node)
    if isinstance(parent, ast.Call):
        return parent.func is called.node
    switched = (item.subject for item in events_in(script.facts.trace) if isinstance(item.event, ModeChange))
    local = isinstance(parent, ast.Assign) and all(isinstance(target, ast.Name) for target in parent.targets)
    return local and not any(subject is called.result for subject in switched)


def _parents(function: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
