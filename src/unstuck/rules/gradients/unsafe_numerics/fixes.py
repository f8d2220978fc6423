"""Edits that replace an unsafe formula, written as one expression, with a stable operation."""

from __future__ import annotations

import ast

from unstuck.events import Place
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.edits import syntax
from unstuck.source.edits.edit import Editor, Edits


def stable(script: Script, place: Place, name: str) -> tuple[Edits | None, str]:
    """The edits for the formula at `place`, and how safe they are."""
    editor = Editor(script)
    node = editor.call_at(place)
    if node is None:
        return None, "manual"
    operand = _operand(script, node)
    if operand is None:
        return None, "manual"
    if name == "+":
        return editor.wrap(operand, "{} + 1e-8"), "unsafe"
    if name == "clamp":
        return editor.wrap(operand, "{}.clamp(-1 + 1e-7, 1 - 1e-7)"), "unsafe"
    text = (
        _log_softmax(script, editor, operand) if name == "log_softmax" else _functional(script, editor, operand, name)
    )
    return (editor.replace(node, text) if text else None), "safe"


def _operand(script: Script, node: ast.Call) -> ast.expr | None:
    """What an operation is applied to: `x` in `torch.log(x)` and in `x.log()`."""
    called = next((call for call in script.facts.calls if call.node is node), None)
    if called is not None and called.name.startswith(".") and isinstance(node.func, ast.Attribute):
        return node.func.value
    return node.args[0] if node.args and not node.keywords else None


def _log_softmax(script: Script, editor: Editor, operand: ast.expr) -> str | None:
    if not losses.is_function_of_torch(script, operand, "softmax"):
        return None
    text = editor.text_of(operand) if isinstance(operand, ast.Call) else None
    function = editor.text_of(operand.func) if isinstance(operand, ast.Call) else None
    if text is None or function is None or not function.endswith(".softmax"):
        return None
    return function.removesuffix("softmax") + "log_softmax" + text[len(function) :]


def _functional(script: Script, editor: Editor, operand: ast.expr, name: str) -> str | None:
    """`F.softplus(x)` for `1 + exp(x)`, and the like."""
    inner = _inner(script, operand)
    text, prefix = (editor.text_of(inner) if inner is not None else None), _prefix(script)
    if inner is None or text is None or prefix is None:
        return None
    if name.endswith("-"):
        return f"{prefix}.{name[:-1]}(-{text if isinstance(inner, syntax.ATOMS) else f'({text})'})"
    return f"{prefix}.{name}({text})"


def _inner(script: Script, operand: ast.expr) -> ast.expr | None:
    """The score inside `sigmoid(x)`, `1 - sigmoid(x)`, `exp(x)` or `1 + exp(x)`."""
    if isinstance(operand, ast.BinOp):
        sides = [side for side in (operand.left, operand.right) if isinstance(side, ast.Call)]
        operand = sides[0] if len(sides) == 1 else operand
    if not isinstance(operand, ast.Call) or syntax.last_name(operand.func) not in ("sigmoid", "exp"):
        return None
    return _operand(script, operand)


def _prefix(script: Script) -> str | None:
    """The name the script uses for torch.nn.functional."""
    for node in script.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.nn.functional" and alias.asname:
                    return alias.asname
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.nn":
            for alias in node.names:
                if alias.name == "functional":
                    return alias.asname or alias.name
    plain = any(
        isinstance(node, ast.Import) and any(a.name == "torch" for a in node.names) for node in script.tree.body
    )
    return "torch.nn.functional" if plain else None
