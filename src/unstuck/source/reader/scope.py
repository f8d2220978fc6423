"""Names and their values, with imports resolved to full dotted paths; places in a file."""

from __future__ import annotations

import ast
import builtins

import msgspec

from unstuck.events import Place
from unstuck.source.values import UNKNOWN, Symbol, Value

BUILTINS = frozenset(dir(builtins))


class SourceFile(msgspec.Struct, eq=False):
    """A file of the user's, as lines."""

    path: str
    lines: list[str]
    plain: bool = False
    """All of it is ASCII, so that columns are bytes."""

    def __post_init__(self) -> None:
        self.plain = all(map(str.isascii, self.lines))

    def place(self, node: ast.AST, function: str = "") -> Place:
        """Where a node is, with columns counted in characters from 1."""
        line, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or 0
        if self.plain and end:
            return Place(self.path, line, node.col_offset + 1, end, node.end_col_offset + 1, function)  # type: ignore[attr-defined]
        column = self._column(line, getattr(node, "col_offset", 0))
        end_column = self._column(end, getattr(node, "end_col_offset", None) or 0) if end else 0
        return Place(self.path, line, column, end, end_column, function)

    def _column(self, line: int, offset: int) -> int:
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        # ast counts bytes of UTF-8; people and editors count characters.
        return (offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))) + 1


class Scope(msgspec.Struct, eq=False):
    """Names of one module, class body or function call; `outer` is the scope it was written in."""

    names: dict[str, Value] = msgspec.field(default_factory=dict)
    outer: Scope | None = None
    file: SourceFile | None = None
    """The file it was written in; None takes the outer scope's."""

    def get(self, name: str) -> Value:
        """The value of `name` here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return Symbol(f"builtins.{name}") if name in BUILTINS else UNKNOWN

    @property
    def source(self) -> SourceFile:
        """The file this scope was written in."""
        scope: Scope = self
        while scope.file is None and scope.outer is not None:
            scope = scope.outer
        assert scope.file is not None
        return scope.file


def bind_import(node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
    """Bind the names of an import statement to dotted paths."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            scope.names[name] = Symbol(alias.name if alias.asname else name)
        return
    base = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name != "*":
            dot = "" if base.endswith(".") else "."
            scope.names[alias.asname or alias.name] = Symbol(f"{base}{dot}{alias.name}")


def dotted(node: ast.expr) -> str:
    """`self.opt` for the expression self.opt, empty for anything that is not a plain dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
