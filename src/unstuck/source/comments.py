"""Comments of a Python text, told apart from strings that look like one."""

from __future__ import annotations

import re

import msgspec

IGNORE = re.compile(r"#\s*unstuck:\s*ignore(?:\[([^\]]*)\])?")


class IgnoreComment(msgspec.Struct, frozen=True):
    """A `# unstuck: ignore[...]`; columns count from 1, the end is exclusive."""

    line: int
    column: int
    end_column: int
    words: tuple[str, ...] | None
    """What stands in the brackets; None without brackets, which silences every rule."""


class LineEnds(msgspec.Struct, frozen=True):
    """What the ends of lines hold, and where no comment can be put."""

    ignores: dict[int, IgnoreComment]
    blocked: frozenset[int]
    """Lines that end inside a string or in a backslash."""


def ignore_comments(text: str) -> tuple[IgnoreComment, ...]:
    """Every ignore comment, top down."""
    return tuple(line_ends(text).ignores.values()) if IGNORE.search(text) else ()


def line_ends(text: str) -> LineEnds:
    """Look at the end of every line. A text that cannot be told apart into tokens has no line to write on."""
    import io
    import tokenize

    ignores: dict[int, IgnoreComment] = {}
    blocked: set[int] = set()
    commented: set[int] = set()
    strings: list[int] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            first, last = token.start[0], token.end[0]
            if token.type == tokenize.COMMENT:
                commented.add(first)
                if (comment := _ignore_in(token.string, first, token.start[1])) is not None:
                    ignores[first] = comment
            elif token.type == tokenize.STRING:
                blocked.update(range(first, last))
            elif tokenize.tok_name[token.type] == "FSTRING_START":
                strings.append(first)
            elif tokenize.tok_name[token.type] == "FSTRING_END":
                blocked.update(range(strings.pop(), last))
    except (tokenize.TokenError, SyntaxError):
        return LineEnds({}, frozenset(range(1, text.count("\n") + 2)))
    lines = enumerate(text.split("\n"), 1)
    blocked.update(number for number, line in lines if line.endswith("\\") and number not in commented)
    return LineEnds(ignores, frozenset(blocked))


def _ignore_in(comment: str, line: int, column: int) -> IgnoreComment | None:
    match = IGNORE.search(comment)
    if match is None:
        return None
    listed = match.group(1)
    words = None if listed is None else tuple(word.strip() for word in listed.split(",") if word.strip())
    return IgnoreComment(line, column + match.start() + 1, column + match.end() + 1, words)
