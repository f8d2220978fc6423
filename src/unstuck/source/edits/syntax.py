"""Questions that edits ask about a syntax tree and its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import msgspec

from unstuck.events import Place
from unstuck.source.reader.scope import SourceFile

ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set, ast.ListComp)
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)
TIGHT = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Attribute, ast.Subscript, ast.Starred, ast.Await)

Position = tuple[int, int]
"""A line and a column, both from 1, in characters."""


class Inside(msgspec.Struct, eq=False):
    """A statement, the block it is in, and the statement that owns the block."""

    statement: ast.stmt
    block: list[ast.stmt]
    owner: ast.stmt | None


def span(place: Place) -> tuple[Position, Position]:
    """Where a place begins and ends."""
    return (place.line, place.column), (place.end_line, place.end_column)


def statements_around(body: list[ast.stmt], place: Place, file: SourceFile) -> list[Inside]:
    """The statements around a place, outermost first."""
    chain: list[Inside] = []
    blocks = [body]
    while blocks:
        owner = chain[-1].statement if chain else None
        inner = next(
            (Inside(item, block, owner) for block in blocks for item in block if _holds(item, place, file)), None
        )
        if inner is None:
            break
        chain.append(inner)
        blocks = list(_blocks(inner.statement))
    return chain


def _holds(statement: ast.stmt, place: Place, file: SourceFile) -> bool:
    if not first_line(statement) <= place.line <= place.end_line <= (statement.end_lineno or 0):
        return False
    start, end = span(place)
    whole_start, whole_end = span(file.place(statement))
    return min(whole_start, (first_line(statement), whole_start[1])) <= start and end <= whole_end


def first_line(statement: ast.stmt) -> int:
    """The line of the statement's first decorator, or its own."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(item.lineno for item in decorators)])


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def own_lines(statement: ast.stmt, file: SourceFile) -> tuple[int, int, str] | None:
    """First line, last line and indentation of a statement, if nothing else is on these lines."""
    place = file.place(statement)
    first = first_line(statement)
    line, last = file.lines[place.line - 1], file.lines[place.end_line - 1]
    indent, rest = line[: place.column - 1], last[place.end_column - 1 :].strip()
    continued = first > 1 and file.lines[first - 2].rstrip().endswith("\\")
    is_elif = isinstance(statement, ast.If) and line[place.column - 1 :].startswith("elif")
    if indent.strip() or "\f" in indent or continued or is_elif or (rest and not rest.startswith("#")):
        return None
    return first, place.end_line, indent


def first_of_comment(lines: Sequence[str], first: int, last: int) -> int:
    """The first of the comment lines that belong to the statement on lines `first` to `last` alone.

    A comment above several statements without a gap is a heading of them all and does not move.
    """
    below = lines[last].strip() if last < len(lines) else ""
    indent = _indent(lines[first - 1])
    closes = not below or below.startswith("#") or len(_indent(lines[last])) < len(indent)
    start = first
    while closes and start > 1 and lines[start - 2].startswith(f"{indent}#"):
        start -= 1
    return start


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def movable(chain: Sequence[Inside], target: Sequence[Inside]) -> Inside | None:
    """The statement of the target's block to move: itself, or the `if` or `with` that contains nothing else."""
    for depth in range(len(chain) - 1, -1, -1):
        inside = chain[depth]
        if target and inside.block is target[-1].block:
            return None if inside.statement is target[-1].statement else inside
        owner = inside.owner
        alone = len(inside.block) == 1 and isinstance(owner, ast.If | ast.With) and not getattr(owner, "orelse", [])
        if not alone:
            return None
    return None


def depends(block: Sequence[ast.stmt], one: ast.stmt, other: ast.stmt, *, before: bool) -> bool:
    """Would moving `one` to `other` change what a name means, or pass a statement that leaves the block?"""
    here, there = block.index(one), block.index(other)
    edge = there + (not before)
    passed = block[here + 1 : edge] if here < edge else block[edge:here]
    if any(isinstance(node, LEAVES) for item in (one, *passed) for node in ast.walk(item)) or not passed:
        return True
    written, read = _names(one)
    passed_written: set[str] = set()
    passed_read: set[str] = set()
    for item in passed:
        stored, loaded = _names(item)
        passed_written |= stored
        passed_read |= loaded
    return bool(written & (passed_written | passed_read) or read & passed_written)


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Dotted names that a statement writes, and those that it reads."""
    written: set[str] = set()
    read: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name | ast.Attribute):
            name = ast.unparse(node)
            (read if isinstance(node.ctx, ast.Load) else written).add(name)
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            written.add(ast.unparse(node.value))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            written.add(node.name)
        elif isinstance(node, ast.AugAssign):
            read.add(ast.unparse(node.target))
        elif isinstance(node, ast.alias):
            written.add(node.asname or node.name.split(".")[0])
    return written, read


def parent_of(node: ast.AST, statement: ast.stmt) -> ast.AST:
    """What a node of a statement is directly part of."""
    pairs = ((parent, child) for parent in ast.walk(statement) for child in ast.iter_child_nodes(parent))
    return next((parent for parent, child in pairs if child is node), statement)


def binds_tighter(parent: ast.AST, node: ast.AST) -> bool:
    """Must an operator expression be parenthesised in place of `node`?"""
    if isinstance(parent, ast.Subscript):
        return parent.value is node
    return isinstance(parent, TIGHT) or (isinstance(parent, ast.Call) and parent.func is node)


def same_expression(text: str, node: ast.expr) -> bool:
    """Does the text mean what the node means?"""
    try:
        return ast.unparse(ast.parse(f"({text})", mode="eval")) == ast.unparse(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def is_expression(text: str) -> bool:
    """Is it an expression without the brackets around it?"""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def last_name(node: ast.expr) -> str:
    """`Adam` for `optim.Adam` and for `Adam`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def arguments(call: ast.Call) -> list[ast.expr | ast.keyword]:
    """The arguments of a call in the order they are written."""
    return sorted([*call.args, *call.keywords], key=lambda item: (item.lineno, item.col_offset))


def import_of(tree: ast.Module, name: str) -> tuple[ast.ImportFrom, ast.alias] | None:
    """The only statement that binds `name`, if that is a `from ... import`."""
    found = [
        (node, alias)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (alias.asname or alias.name) == name
    ]
    return found[0] if len(found) == 1 and bindings(tree, name) == 1 else None


def imported_names(tree: ast.Module) -> set[str]:
    """Names that imports bind."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.alias) for name in _bound_by(node)}


def bindings(tree: ast.Module, name: str) -> int:
    """How often the file binds `name`."""
    return sum(name in _bound_by(node) for node in ast.walk(tree))


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.split(".")[0]]
    return [node.name] if isinstance(node, ast.ExceptHandler) and node.name else []


def uses(tree: ast.Module, name: str) -> int:
    """How often `name` is read; a string of this text, as in `__all__`, counts too."""
    return sum(
        (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Constant) and node.value == name)
        for node in ast.walk(tree)
    )


def position_of(sign: str, gap: str) -> int:
    """Where a sign first occurs in the text between two nodes, outside of comments; 0 if nowhere."""
    return max(_without_comments(gap).find(sign), 0)


def last_sign(gap: str) -> int:
    """The index of the last character that is neither blank nor comment; -1 if there is none."""
    return len(_without_comments(gap).rstrip()) - 1


def _without_comments(gap: str) -> str:
    """The text with comments blanked out; between two nodes no string can contain a `#`."""
    return "\n".join(row.split("#")[0].ljust(len(row)) for row in gap.split("\n"))
