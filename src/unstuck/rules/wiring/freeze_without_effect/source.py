"""M09 in a script: statements that are meant to freeze or resize, and do neither."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import msgspec

from unstuck.events import Place
from unstuck.findings import Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.shared import loop_order
from unstuck.rules.wiring.freeze_without_effect import CAUSES, NoEffect, rule
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.facts import AttributeSet
from unstuck.source.reader import knowledge
from unstuck.source.reader.scope import SourceFile
from unstuck.source.values import Const, Instance, Param, UserClass, Value, alternatives

MISSPELT = pattern(r"(?i)^requ?i?red?s?_?grad(s|_|ients?)?$")
SIZES = {
    "in_features": pattern(r"Linear"),
    "out_features": pattern(r"Linear"),
    "in_channels": pattern(r"Conv(Transpose)?\dd"),
    "out_channels": pattern(r"Conv(Transpose)?\dd"),
    "num_embeddings": pattern(r"Embedding"),
    "embedding_dim": pattern(r"Embedding"),
}
"""Attributes for the sizes of torch layers, and the layers that have them."""
REBUILT = pattern(
    r"\.weight(\.data)?\s*=[^=]|\bdel\s.*\.weight\b|\bregister_parameter\(|\.weight(\.data)?\.(set_|resize_)\("
)
PARTS = pattern(r"^(features|classifier|fc|layer\d|conv\d|bn\d|backbone|encoder|heads?|AuxLogits|\d+)$")
"""Names of parts of pretrained models that are modules, not tensors."""
OVER_MODULES = ("children", "modules", "named_children", "named_modules")
READS_IT = r"\.{name}\b(?!\s*=[^=])"


class Mistake(msgspec.Struct, eq=False):
    """One statement without effect."""

    what: str
    variant: NoEffect
    fix: str
    place: Place
    text: str = ""
    """The replacement for the statement, if known."""
    trained: bool = True
    """An optimizer of the script may own what was meant to be frozen."""


def find(script: Script) -> Iterator[Finding]:
    """Assignments to attributes that nothing reads, and comparisons instead of assignments."""
    for mistake in mistakes(script):
        yield rule.finding(
            f"{mistake.what} has no effect.",
            cause=CAUSES[mistake.variant],
            fix=fix_with(mistake.fix, _edits(script, mistake), "unsafe"),
            subject=Subject("module", mistake.what),
            place=mistake.place,
            severity=Severity.ERROR if mistake.trained and script.facts.optimizers else Severity.WARNING,
            variant=mistake.variant,
        )


def mistakes(script: Script) -> list[Mistake]:
    """Every statement without effect, each once, in order."""
    found = (*_assigned(script), *_set_on_children(script), *_only_compared(script))
    return list({mistake.place: mistake for mistake in reversed(found)}.values())[::-1]


def _edits(script: Script, mistake: Mistake) -> Edits | None:
    editor = Editor(script)
    statement = editor.statement_at(mistake.place)
    return editor.replace(statement, mistake.text) if statement is not None and mistake.text else None


def _assigned(script: Script) -> Iterator[Mistake]:
    for item in script.facts.attributes:
        owner, written, place = ast.unparse(item.node.value), ast.unparse(item.node), item.place
        found: Mistake | None = None
        if item.name == "requires_grad" and _is_module(item) and not _done_otherwise(script, item):
            found = _frozen(owner, written, place, _value_of(script, place))
        elif item.name != "requires_grad" and MISSPELT.match(item.name) and _is_trainable(item):
            fix = f"Write {owner}.requires_grad_(...), which works on modules and on parameters."
            found = Mistake(f"Setting {written}", NoEffect.UNKNOWN_NAME, fix, place, _freeze(script, owner, place))
        elif item.name == "trainable" and _is_trainable(item) and not _reads(script, "trainable"):
            fix = f"Write {owner}.requires_grad_(...); `trainable` is Keras, not PyTorch."
            found = Mistake(f"Setting {written}", NoEffect.UNKNOWN_NAME, fix, place, _freeze(script, owner, place))
        elif item.name in SIZES and _is_layer(item) and not REBUILT.search(script.text):
            fix = f"Replace the layer: {owner} = nn.Linear(..., ...)."
            found = Mistake(f"Setting {written}", NoEffect.NOT_RESIZED, fix, place)
        if found is not None:
            found.trained = item.name not in SIZES and _is_trained(script, item.owner)
            yield found


def _done_otherwise(script: Script, item: AttributeSet) -> bool:
    """The parameters are correctly frozen elsewhere, or were never frozen before this "unfreezes" them."""
    owners = {id(option) for option in alternatives(item.owner)}
    frozen = [fact for fact in script.facts.frozen if not fact.trainable]
    properly = any(id(option) in owners for fact in frozen for option in alternatives(fact.owner))
    return not frozen if item.value == Const(True) else properly


def _is_trained(script: Script, owner: Value) -> bool:
    """Does an optimizer own the parameters of the module around it?"""
    whole = {module for made in script.facts.optimizers for module in loop_order.owners(made.parameters)}
    return bool(loop_order.owners(owner) & whole)


def _frozen(owner: str, written: str, place: Place, value: str) -> Mistake:
    text = f"{owner}.requires_grad_({value})" if value else ""
    fix = f"Call {owner}.requires_grad_({value or '...'}), which sets it on every parameter."
    return Mistake(f"Setting {written} on a module", NoEffect.ON_MODULE, fix, place, text)


def _freeze(script: Script, owner: str, place: Place) -> str:
    value = _value_of(script, place)
    return f"{owner}.requires_grad_({value})" if value else ""


def _value_of(script: Script, place: Place) -> str:
    """The text of the assigned value, if the statement has a single target."""
    statement = Editor(script).statement_at(place)
    plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1
    return ast.unparse(statement.value) if plain and isinstance(statement, ast.Assign) else ""


def _is_module(item: AttributeSet) -> bool:
    return all(_lacks(option, item.name) for option in alternatives(item.owner))


def _lacks(owner: Value, name: str) -> bool:
    """Is it certainly a module of a class that does not use this attribute?"""
    if not isinstance(owner, Instance) or not knowledge.is_module(owner):
        return False
    if owner.cls is not None:
        return not _mentions(owner.cls, name)
    return not owner.is_part or PARTS.match(owner.label) is not None


def _mentions(cls: UserClass, name: str, depth: int = 0) -> bool:
    """Does the class or one of its bases define or read `self.name`, or have an unknown base?"""
    if any(_is_own(node, name) for node in ast.walk(cls.node)):
        return True
    bases = [option for base in cls.bases for option in alternatives(base)]
    above = (base for base in bases if isinstance(base, UserClass))
    return depth < 8 and any(_mentions(base, name, depth + 1) for base in above)


def _is_own(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name in (name, "__setattr__")
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr == name and node.value.id == "self"
    return isinstance(node, ast.Name) and node.id == name


def _is_trainable(item: AttributeSet) -> bool:
    options = alternatives(item.owner)
    return all(isinstance(option, Param) or _lacks(option, item.name) for option in options)


def _is_layer(item: AttributeSet) -> bool:
    """Is it certainly a layer with this size attribute?"""
    return all(_has_size(option, item.name) for option in alternatives(item.owner))


def _has_size(owner: Value, name: str) -> bool:
    if not isinstance(owner, Instance) or owner.cls is not None:
        return False
    if owner.is_part:
        return owner.label == "fc" and "Linear" in SIZES[name].pattern
    return owner.kind.startswith("torch.nn.") and SIZES[name].fullmatch(owner.last) is not None


def _reads(script: Script, name: str) -> bool:
    return re.search(READS_IT.format(name=name), script.text) is not None


def _set_on_children(script: Script) -> Iterator[Mistake]:
    """`for layer in model.children(): layer.requires_grad = False`."""
    if not re.search(r"\.requires_grad\s*=[^=]", script.text) or not re.search(r"(children|modules)\(\)", script.text):
        return
    file = SourceFile(script.path, script.lines)
    for loop in ast.walk(script.tree):
        name = _module_of(loop) if isinstance(loop, ast.For) else ""
        if not name or _freezes_properly(loop, name):
            continue
        for node in ast.walk(loop):
            if isinstance(node, ast.Assign) and _sets_on(node.targets[0], name) and len(node.targets) == 1:
                target = node.targets[0]
                written, value = ast.unparse(target), ast.unparse(node.value)
                yield _frozen(name, written, file.place(target), value)


def _module_of(loop: ast.For) -> str:
    """The name of the module in `for ... in model.named_children():`, or empty."""
    call = loop.iter
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in OVER_MODULES:
        return ""
    target: ast.expr = loop.target
    if call.func.attr.startswith("named"):
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return ""
        target = target.elts[1]
    again = (node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name))
    rebound = any(isinstance(node.ctx, ast.Store) and node.id == getattr(target, "id", "") for node in again)
    return target.id if isinstance(target, ast.Name) and not rebound else ""


def _freezes_properly(loop: ast.AST, name: str) -> bool:
    """Does the loop also set it on parameters, or call requires_grad_?"""
    for node in ast.walk(loop):
        if isinstance(node, ast.Attribute) and node.attr == "requires_grad_":
            return True
        if isinstance(node, ast.Assign) and any(_sets_on_other(target, name) for target in node.targets):
            return True
    return False


def _sets_on_other(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "requires_grad" and not _sets_on(target, name)


def _sets_on(target: ast.expr, name: str) -> bool:
    if not isinstance(target, ast.Attribute) or target.attr != "requires_grad":
        return False
    return isinstance(target.value, ast.Name) and target.value.id == name


def _only_compared(script: Script) -> Iterator[Mistake]:
    """`p.requires_grad == False` as a statement, or `model.requires_grad_` without the call."""
    if not re.search(r"\.requires_grad(\s*==|_\s*(#|$))", script.text, re.M):
        return
    file = SourceFile(script.path, script.lines)
    for node in ast.walk(script.tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if (
            isinstance(value, ast.Compare)
            and isinstance(value.left, ast.Attribute)
            and value.left.attr == "requires_grad"
        ):
            text = f"{ast.unparse(value.left)} = {ast.unparse(value.comparators[0])}"
            if isinstance(value.ops[0], ast.Eq):
                yield Mistake(
                    ast.unparse(value), NoEffect.NOT_ASSIGNED, "Write = instead of ==.", file.place(value), text
                )
        elif isinstance(value, ast.Attribute) and value.attr == "requires_grad_":
            written = ast.unparse(value)
            yield Mistake(
                f"{written} without a call", NoEffect.NOT_ASSIGNED, f"Write {written}(False).", file.place(value)
            )
