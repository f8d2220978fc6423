"""Ignore comments of a Python text, as opposed to strings that look like one."""

from __future__ import annotations

import re

import msgspec

from unstuck.lazy import pattern

START = r"#\s*unstuck:\s*ignore(?![\w-])"
LISTABLE = r"(?:(?:[A-Za-z]\d+|[A-Za-z]+(?:[-_][A-Za-z]+)+)(?:/[\w-]+)?\b|[A-Z](?=\s*(?:[,)}#]|$)))"
"""A code or a name, perhaps with a variant, or a family. Other words behind `ignore` are a remark."""
WITHOUT_BRACKETS = rf"[({{]?\s*((?:{LISTABLE}|[a-z]+(?=\s*(?:[)}}#]|$)))(?:[\s,]+{LISTABLE})*)(?:\s*[)}}])?"
ODD_BRACKETS = r"\[\s*([^\]#]*[^\]#\s])?(?:\s*\])?"
MISTYPED_LIST = rf"\s*[:=]?\s*(?:{WITHOUT_BRACKETS}|{ODD_BRACKETS})"

IGNORE = pattern(rf"{START}(?:\[([^\]]*)\]|(?!{MISTYPED_LIST}))")
"""A valid comment; its group is the text in the brackets."""
MISTYPED = pattern(START + MISTYPED_LIST)
"""A comment that names rules without the brackets, and so silences nothing; otherwise it would silence all."""


class IgnoreComment(msgspec.Struct, frozen=True):
    """A `# unstuck: ignore[...]`; columns count from 1, the end is exclusive."""

    line: int
    column: int
    end_column: int
    words: tuple[str, ...] | None
    """The text in the brackets; None without brackets, which silences every rule."""
    mistyped: bool = False
    """The words lack their brackets, and silence nothing."""


class LineEnds(msgspec.Struct, frozen=True):
    """The ignore comments at the ends of lines, and the lines that cannot get one."""

    ignores: dict[int, IgnoreComment]
    blocked: frozenset[int]
    """Lines that end inside a string or in a backslash."""


def ignore_comments(text: str) -> tuple[IgnoreComment, ...]:
    """Every ignore comment, from top to bottom."""
    return tuple(line_ends(text).ignores.values()) if re.search(START, text) else ()


def line_ends(text: str) -> LineEnds:
    """Look at the end of every line. A text that cannot be split into tokens has no line for a comment."""
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
    valid = IGNORE.search(comment)
    match = valid or MISTYPED.search(comment)
    if match is None:
        return None
    listed = next((group for group in match.groups() if group is not None), None if valid else "")
    separator = "," if valid else r"[\s,]+"
    words = None if listed is None else tuple(word.strip() for word in re.split(separator, listed) if word.strip())
    return IgnoreComment(line, column + match.start() + 1, column + match.end() + 1, words, valid is None)
