"""Going through a syntax tree, several times as fast as `ast.walk`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import EllipsisType, NoneType

LEAVES = frozenset({str, int, float, complex, bytes, bool, NoneType, EllipsisType, ast.Load, ast.Store, ast.Del})
"""What nodes hold besides nodes, and the contexts of names."""


def parts_of(root: ast.AST) -> Iterator[ast.AST]:
    """The node and everything inside it, in no particular order, without the contexts of names."""
    waiting: list[ast.AST] = [root]
    while waiting:
        node = waiting.pop()
        if type(node) in LEAVES:
            continue
        yield node
        for value in node.__dict__.values():
            kind = type(value)
            if kind is list:
                waiting += value
            elif kind not in LEAVES:
                waiting.append(value)
