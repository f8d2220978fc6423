"""The expression that failed, read out of the user's file: which variables it names, and what they hold."""

from __future__ import annotations

import ast
import itertools
import linecache
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from torch import Tensor, nn

MISSING = object()
"""Stands for no value."""
_LONGEST = 100
_LONGEST_NAME = 40


class FailingLine:
    """What is written at the place where a frame failed."""

    def __init__(self, entry: TracebackType) -> None:
        self._frame = entry.tb_frame
        self.text = _text(entry)
        self._tree = _parsed(self.text)

    @property
    def called(self) -> str:
        """What is called, as the user writes it, without `self.`."""
        call = self._call()
        return _short(call.func, without="self.") if call is not None else ""

    def argument(self, position: int) -> str:
        """The text of a positional argument."""
        return _short(self._argument(position))

    def argument_value(self, position: int) -> Any:
        """What a positional argument stands for; `MISSING` if that takes running code."""
        node = self._argument(position)
        return self.value(node) if node is not None else MISSING

    def name_of(self, value: Any) -> str:
        """The argument that is this very value, as it is written."""
        call = self._call()
        node = next((node for node in (call.args if call is not None else ()) if self.value(node) is value), None)
        return _short(node)

    def owner_of(self, method: str) -> tuple[str, Any] | None:
        """What is asked for this method, and how it is written."""
        for node in ast.walk(self._tree) if self._tree is not None else ():
            if isinstance(node, ast.Attribute) and node.attr == method and self.value(node.value) is not MISSING:
                return ast.unparse(node.value), self.value(node.value)
        return None

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors it names: `x`, `self.hidden`, `batch["label"]`."""
        seen: set[str] = set()
        for node in _outermost(self._tree, lambda node: issubclass(type(self.value(node)), Tensor)):
            name = ast.unparse(node)
            if name not in seen and len(name) <= _LONGEST_NAME:
                seen.add(name)
                yield name, self.value(node)

    def value(self, node: ast.AST) -> Any:
        """What a name, an attribute or an element stands for, without running any code of the program."""
        if isinstance(node, ast.Name):
            return self._frame.f_locals.get(node.id, self._frame.f_globals.get(node.id, MISSING))
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self.value(node.value)
            if type(owner) in (dict, list, tuple):
                try:
                    return owner[node.slice.value]
                except (LookupError, TypeError):
                    return MISSING
        return MISSING

    def _argument(self, position: int) -> ast.expr | None:
        call = self._call()
        if call is None or len(call.args) <= position or any(isinstance(arg, ast.Starred) for arg in call.args):
            return None
        return call.args[position]

    def _call(self) -> ast.Call | None:
        body = self._tree.body[0] if self._tree is not None and self._tree.body else None
        return body.value if isinstance(body, ast.Expr) and isinstance(body.value, ast.Call) else None


def _short(node: ast.AST | None, without: str = "") -> str:
    text = ast.unparse(node).removeprefix(without) if node is not None else ""
    return text if len(text) <= _LONGEST_NAME else ""


def attributes_of(thing: Any) -> dict[str, Any]:
    """Its own attributes, without running any code of the program: no property, no `__getattr__`."""
    try:
        held = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _attribute(owner: Any, name: str) -> Any:
    held = attributes_of(owner)
    if issubclass(type(owner), nn.Module):
        for part in ("_parameters", "_buffers", "_modules"):
            if name in held.get(part, ()):
                return held[part][name]
    return held.get(name, MISSING)


def _text(entry: TracebackType) -> str:
    """The source between the two ends of the failing instruction."""
    code = entry.tb_frame.f_code
    positions = next(itertools.islice(code.co_positions(), entry.tb_lasti // 2, None), (None,) * 4)
    start, end, column, end_column = positions
    if start is None or end is None or column is None or end_column is None or end - start > _LONGEST:
        return ""
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(start, end + 1)]
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="replace")


def _parsed(text: str) -> ast.Module | None:
    for form in (f"({text}\n)", text):
        try:
            return ast.parse(form)
        except (SyntaxError, ValueError):
            continue
    return None


def _outermost(tree: ast.AST | None, wanted: Any) -> Iterator[ast.AST]:
    """The nodes that are wanted, without looking inside them."""
    todo = [tree] if tree is not None else []
    while todo:
        node = todo.pop(0)
        if wanted(node):
            yield node
        else:
            todo[:0] = list(ast.iter_child_nodes(node))
