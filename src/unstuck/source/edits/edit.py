"""Building the edits of a fix.

A rule's source witness that knows the remedy asks an `Editor` for edits and puts them into the finding's `Fix`:

    def in_source(script: Script) -> Iterator[Finding]:
        ...
        edits = Editor(script).move_before(zero_place, backward_place)
        yield rule.finding(..., fix=fix_with("Move zero_grad() before backward().", edits, "safe"))

Every function takes spots: a `Place` (as events and values carry them) or a node of `script.tree`. Every function
returns a tuple of edits, or **None when the change cannot be made by editing text alone**: a statement that shares
its line with another (`if x: step()`, `a(); b()`), a block that would become empty, a name that means something else,
and any place in **another file** than the script. `fix_with` turns None into a fix without edits, so a rule need not
check. Edits of several calls may be combined when they touch different text: `both(first, second)`.

Positions are those of `script.lines`: lines from 1, columns in characters from 1, end exclusive. New text uses `\\n`;
applying the edits gives it the line ends of the file. A fix is applied only if the file still parses and the
finding is gone, so an edit need not be perfect, but a `safe` edit must do nothing except remove the mistake.

| wanted | call |
|---|---|
| other text for an expression | `replace(spot, "x")`, `wrap(spot, "{} / accum")` (adds the parentheses needed) |
| only a part of an expression | `unwrap(spot, part)`: `softmax(x, dim=1)` becomes `x` |
| a new statement | `insert_before(spot, "optimizer.zero_grad()")`, `insert_after(spot, "...")` |
| a statement removed or moved | `delete(spot)`, `move_before(spot, target)`, `move_after(spot, target)` |
| another callee | `rename_callee(spot, "AdamW")`, with its import |
| keywords | `set_keyword(spot, "dim", "1")`, `remove_keyword(spot, "verbose")` |
| an argument or list element removed | `remove_element(spot)`, such as the last layer of a Sequential |
| the node or text at a place | `node_at(place)`, `call_at(place)`, `statement_at(place)`, `text_of(spot)` |
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from unstuck.events import Place
from unstuck.findings import Edit, Fix
from unstuck.source.documents.document import Row, splice
from unstuck.source.edits import syntax
from unstuck.source.reader.scope import SourceFile

if TYPE_CHECKING:
    from unstuck.source import Script

Spot = Place | ast.AST
Edits = tuple[Edit, ...]


def fix_with(text: str, edits: Edits | None, safety: str = "unsafe") -> Fix:
    """A fix that says `text`, with the edits if there are any; `safety` is `safe` or `unsafe`."""
    return Fix(text, edits, safety) if edits else Fix(text)


def both(*parts: Edits | None) -> Edits | None:
    """All the edits together, or None if one of them could not be made."""
    if any(part is None for part in parts):
        return None
    return tuple(edit for part in parts for edit in part or ())


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The text with the edits made; they must not overlap."""
    return "\n".join(row.text for row in splice([Row(line) for line in text.split("\n")], edits))


class Editor:
    """Makes edits for one script."""

    def __init__(self, script: Script) -> None:
        self.path = script.path
        self.lines = script.lines
        self.tree = script.tree
        self._file = SourceFile(script.path, script.lines)

    def node_at(self, spot: Spot) -> ast.expr | None:
        """The expression exactly at a place."""
        if isinstance(spot, ast.expr):
            return spot if self._is_written(spot) else None
        place, statement = self._place(spot), self.statement_at(spot)
        if place is None or statement is None:
            return None
        wanted = syntax.span(place)
        nodes = (node for node in ast.walk(statement) if isinstance(node, ast.expr) and node.lineno == place.line)
        found = next((node for node in nodes if syntax.span(self._file.place(node)) == wanted), None)
        return found if found is not None and self._is_written(found) else None

    def call_at(self, spot: Spot) -> ast.Call | None:
        """The call exactly at a place."""
        node = self.node_at(spot)
        return node if isinstance(node, ast.Call) else None

    def statement_at(self, spot: Spot) -> ast.stmt | None:
        """The innermost statement around a spot."""
        chain = self._chain(spot)
        return chain[-1].statement if chain else None

    def text_of(self, spot: Spot) -> str | None:
        """The text between a spot's ends."""
        place = self._place(spot)
        return self._between(*syntax.span(place)) if place else None

    def replace(self, spot: Spot, text: str) -> Edits | None:
        """Replace an expression by other text."""
        place = self._place(spot)
        if place is None or (isinstance(spot, ast.expr) and not self._is_written(spot)):
            return None
        return (self._edit(*syntax.span(place), text),)

    def wrap(self, spot: Spot, template: str) -> Edits | None:
        """Put an expression into a template, such as `{} / accum`, with parentheses where they are needed."""
        node = self.node_at(spot)
        statement = self.statement_at(node) if node else None
        if node is None or statement is None:
            return None
        inner = cast(str, self.text_of(node))
        if not isinstance(node, syntax.ATOMS) and "({})" not in template:
            inner = f"({inner})"
        text = template.replace("{}", inner)
        parent = syntax.parent_of(node, statement)
        new = ast.parse(template.replace("{}", "x"), mode="eval").body
        if not isinstance(new, syntax.ATOMS) and syntax.binds_tighter(parent, node):
            text = f"({text})"
        return self.replace(node, text)

    def unwrap(self, spot: Spot, part: Spot) -> Edits | None:
        """Replace an expression by a part of it, with parentheses where they are needed."""
        node, inner = self.node_at(spot), self.node_at(part)
        statement = self.statement_at(node) if node else None
        if node is None or inner is None or statement is None:
            return None
        text = cast(str, self.text_of(inner))
        around = self._between(self._start(node), self._start(inner)) + self._between(self._end(inner), self._end(node))
        if "#" in around:
            return None
        loose = not isinstance(inner, syntax.ATOMS) and syntax.binds_tighter(syntax.parent_of(node, statement), node)
        return self.replace(node, f"({text})" if loose or not syntax.is_expression(text) else text)

    def insert_before(self, spot: Spot, text: str) -> Edits | None:
        """A new statement on the line before the statement around a spot."""
        found = self._own_lines(spot)
        if found is None:
            return None
        first, _, indent = found
        return (self._edit((first, 1), (first, 1), _indented(text, indent) + "\n"),)

    def insert_after(self, spot: Spot, text: str) -> Edits | None:
        """A new statement on the line after the statement around a spot."""
        found = self._own_lines(spot)
        if found is None:
            return None
        end = self._line_end(found[1])
        return (self._edit(end, end, "\n" + _indented(text, found[2])),)

    def delete(self, spot: Spot) -> Edits | None:
        """Remove the statement around a spot, with the comment on its line."""
        chain, found = self._chain(spot), self._own_lines(spot)
        if found is None or len(chain[-1].block) == 1:
            return None
        return (self._without_lines(found[0], found[1]),)

    def move_before(self, spot: Spot, target: Spot) -> Edits | None:
        """Move a statement before another one of the same block, if nothing in between depends on it.

        An `if` or `with` that contains nothing else moves as a whole. The comment on the line moves too, and so do
        comment lines above that belong to this statement alone.
        """
        return self._move(spot, target, before=True)

    def move_after(self, spot: Spot, target: Spot) -> Edits | None:
        """Move a statement after another one of the same block: see `move_before`."""
        return self._move(spot, target, before=False)

    def rename_callee(self, spot: Spot, name: str) -> Edits | None:
        """Call `name` instead: `optim.Adam(...)` becomes `optim.AdamW(...)`; a name imported by `from` is imported."""
        call = self.call_at(spot)
        if call is None:
            return None
        old = syntax.last_name(call.func)
        end = self._end(call.func)
        start = (end[0], end[1] - len(old))
        if not old or self._between(start, end) != old:
            return None
        renamed = (self._edit(start, end, name),)
        return renamed if isinstance(call.func, ast.Attribute) else both(renamed, self._import_as(old, name))

    def set_keyword(self, spot: Spot, name: str, value: str) -> Edits | None:
        """Add a keyword argument to a call, or change its value. The call must not pass it by position."""
        call = self.call_at(spot)
        if call is None or (len(call.args) == 1 and isinstance(call.args[0], ast.GeneratorExp)):
            return None
        present = next((keyword for keyword in call.keywords if keyword.arg == name), None)
        if present is not None:
            return self.replace(present, f"{name}={value}")
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return self._add_argument(call, f"{name}={value}")

    def remove_keyword(self, spot: Spot, name: str) -> Edits | None:
        """Remove a keyword argument from a call, with its comma."""
        call = self.call_at(spot)
        arguments = syntax.arguments(call) if call else []
        index = next((i for i, item in enumerate(arguments) if isinstance(item, ast.keyword) and item.arg == name), -1)
        return self._without(arguments, index) if index >= 0 else None

    def remove_element(self, spot: Spot) -> Edits | None:
        """Remove an argument of a call or an element of a list, with its comma; a `(name, value)` pair as a whole."""
        node = self.node_at(spot)
        statement = self.statement_at(node) if node else None
        if node is None or statement is None:
            return None
        parent = syntax.parent_of(node, statement)
        if isinstance(parent, ast.Tuple) and len(parent.elts) == 2:
            node, parent = parent, syntax.parent_of(parent, statement)
        elements = syntax.arguments(parent) if isinstance(parent, ast.Call) else getattr(parent, "elts", [])
        if node not in elements or not isinstance(parent, ast.Call | ast.List):
            return None
        return self._without(elements, elements.index(node))

    def _without(self, arguments: Sequence[ast.AST], index: int) -> Edits | None:
        start, end = self._start(arguments[index]), self._end(arguments[index])
        rest = self.lines[end[0] - 1][end[1] - 1 :].split("#")[0].strip()
        if not self.lines[start[0] - 1][: start[1] - 1].strip() and rest in ("", ","):
            return (self._without_lines(start[0], end[0]),)
        gaps = []
        if index + 1 < len(arguments):
            gaps, end = [(end, self._start(arguments[index + 1]))], self._start(arguments[index + 1])
        elif index:
            before = self._end(arguments[index - 1])
            gaps = [(before, start)]
            start = self._after(before, syntax.position_of(",", self._between(before, start)))
        if any("#" in self._between(*gap) for gap in gaps):
            return None
        return (self._edit(start, end, ""),)

    def _is_written(self, node: ast.expr) -> bool:
        """Does the text mean what the node means? Older Pythons get positions inside f-strings wrong."""
        return syntax.same_expression(self.text_of(node) or "", node)

    def _place(self, spot: Spot) -> Place | None:
        """Where a spot is, or None if it is in another file."""
        place = spot if isinstance(spot, Place) else self._file.place(spot)
        known = place.column and place.end_column and place.end_line <= len(self.lines)
        return place if place.path == self.path and known else None

    def _chain(self, spot: Spot) -> list[syntax.Inside]:
        place = self._place(spot)
        return syntax.statements_around(self.tree.body, place, self._file) if place else []

    def _start(self, node: ast.AST) -> syntax.Position:
        return syntax.span(self._file.place(node))[0]

    def _end(self, node: ast.AST) -> syntax.Position:
        return syntax.span(self._file.place(node))[1]

    def _between(self, start: syntax.Position, end: syntax.Position) -> str:
        rows = self.lines[start[0] - 1 : end[0]]
        rows[-1] = rows[-1][: end[1] - 1]
        rows[0] = rows[0][start[1] - 1 :]
        return "\n".join(rows)

    def _after(self, start: syntax.Position, characters: int) -> syntax.Position:
        """The position this many characters later."""
        line, column = start
        while characters > len(self.lines[line - 1]) + 1 - column:
            characters -= len(self.lines[line - 1]) + 2 - column
            line, column = line + 1, 1
        return (line, column + characters)

    def _edit(self, start: syntax.Position, end: syntax.Position, text: str) -> Edit:
        return Edit(self.path, *start, *end, text)

    def _line_end(self, line: int) -> syntax.Position:
        return (line, len(self.lines[line - 1]) + 1)

    def _own_lines(self, spot: Spot) -> tuple[int, int, str] | None:
        """First line, last line and indentation of the statement around a spot, if nothing else is on these lines."""
        chain = self._chain(spot)
        return syntax.own_lines(chain[-1].statement, self._file) if chain else None

    def _without_lines(self, first: int, last: int) -> Edit:
        if last < len(self.lines):
            return self._edit((first, 1), (last + 1, 1), "")
        return self._edit(self._line_end(first - 1), self._line_end(last), "")

    def _move(self, spot: Spot, target: Spot, *, before: bool) -> Edits | None:
        there = self._chain(target)
        here = syntax.movable(self._chain(spot), there)
        if here is None:
            return None
        one, other = here.statement, there[-1].statement
        source, goal = syntax.own_lines(one, self._file), syntax.own_lines(other, self._file)
        if source is None or goal is None or syntax.depends(here.block, one, other, before=before):
            return None
        first = syntax.first_of_comment(self.lines, source[0], source[1])
        text = "\n".join(self.lines[first - 1 : source[1]])
        spot_before, spot_after = (goal[0], 1), self._line_end(goal[1])
        added = self._edit(spot_before, spot_before, text + "\n") if before else None
        return (self._without_lines(first, source[1]), added or self._edit(spot_after, spot_after, "\n" + text))

    def _import_as(self, old: str, new: str) -> Edits | None:
        """Import `new` from where `old` is imported, and drop `old` if nothing else uses it."""
        found = syntax.import_of(self.tree, old)
        if found is None:
            return None
        statement, alias = found
        present = any((other.asname or other.name) == new for other in statement.names)
        if not present and syntax.bindings(self.tree, new):
            return None
        last_use = alias.asname is None and syntax.uses(self.tree, old) == 1
        if not present:
            return self.replace(alias, new if last_use else f"{self.text_of(alias)}, {new}")
        return self._without_alias(statement, alias) if last_use else ()

    def _without_alias(self, statement: ast.ImportFrom, alias: ast.alias) -> Edits:
        index = statement.names.index(alias)
        after = statement.names[index + 1 : index + 2]
        start = self._start(alias) if after else self._end(statement.names[index - 1])
        end = self._start(after[0]) if after else self._end(alias)
        # A comment between two names stays, and so does the name.
        return () if "#" in self._between(start, end) else (self._edit(start, end, ""),)

    def _add_argument(self, call: ast.Call, text: str) -> Edits | None:
        arguments: Sequence[ast.AST] = syntax.arguments(call)
        end = self._end(call)
        start = self._end(arguments[-1]) if arguments else self._end(call.func)
        gap = self._between(start, (end[0], end[1] - 1))
        if not arguments:
            where = self._after(start, syntax.position_of("(", self._between(start, end)) + 1)
            return (self._edit(where, where, text),)
        last = syntax.last_sign(gap)
        where = self._after(start, last + 1)
        if last < 0 or gap[last] != ",":
            return (self._edit(where, where, f", {text}"),)
        if "\n" not in gap:
            return (self._edit(where, where, f" {text}"),)
        where = self._line_end(where[0])
        line, column = self._start(arguments[-1])
        indent = self.lines[line - 1][: column - 1]
        return None if indent.strip() else (self._edit(where, where, f"\n{indent}{text},"),)


def _indented(text: str, indent: str) -> str:
    return "\n".join(indent + line if line.strip() else line for line in text.split("\n"))
