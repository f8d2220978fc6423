"""Path patterns in the syntax of `.gitignore`, also used by `exclude` and `per-file-ignores`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from unstuck.regular import read_regular
from unstuck.source.documents.files import LARGEST_FILE

CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}
NOTHING = r"(?!)"


class Patterns:
    """The lines of one ignore file. Paths are relative to its folder, with `/` between their parts."""

    def __init__(self, lines: Iterable[str]) -> None:
        read = [pattern for pattern in map(_read, lines) if pattern]
        # Most files have no `!` line: then the order does not matter, and one search covers all lines.
        if not any(negated for negated, _, _ in read) and read:
            joined = "|".join(expression for _, _, expression in read)
            files = "|".join(expression for _, folders_only, expression in read if not folders_only)
            read = [(False, True, joined), *([(False, False, files)] if files else [])]
        self._tests = [(negated, folders, re.compile(text).fullmatch) for negated, folders, text in reversed(read)]

    def decide(self, path: str, is_folder: bool) -> bool | None:
        """True: ignored. False: excepted by a `!` line. None: no match. The last matching line decides."""
        for negated, folders_only, matches in self._tests:
            if (is_folder or not folders_only) and matches(path):
                return not negated
        return None

    def covers(self, path: str) -> bool:
        """Does a pattern match this file, or a folder above it?"""
        parts = path.split("/")
        above = ("/".join(parts[:end]) for end in range(1, len(parts)))
        return any(self.decide(folder, is_folder=True) for folder in above) or bool(self.decide(path, is_folder=False))


def _read(line: str) -> tuple[bool, bool, str] | None:
    """Whether a line is a `!` line, whether it means folders only, and its regular expression."""
    text = _without_trailing_blanks(line.rstrip("\r\n"))
    negated = text.startswith("!")
    text = text[negated:]
    if not text or (text.startswith("#") and not negated):
        return None
    folders_only = text.endswith("/")
    text = text[: len(text) - folders_only]
    anchored = "/" in text
    text = text.removeprefix("/")
    if not text:
        return None
    return negated, folders_only, ("" if anchored else "(?:.*/)?") + _expression(text)


def _without_trailing_blanks(text: str) -> str:
    """Blanks at the end do not count, unless the first of them is escaped."""
    bare = text.rstrip(" ")
    escapes = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if escapes % 2 and len(bare) < len(text) else bare


def _expression(text: str) -> str:
    parts, at = [], 0
    while at < len(text):
        piece, at = _next_piece(text, at)
        parts.append(piece)
    return "(?s:" + "".join(parts) + ")"


def _next_piece(text: str, at: int) -> tuple[str, int]:
    """The regular expression of the piece that begins here, and where the next one does."""
    sign = text[at]
    if sign == "*":
        return _stars(text, at)
    if sign == "?":
        return "[^/]", at + 1
    if sign == "[":
        return _bracket(text, at)
    if sign == "\\":
        # A lone backslash at the end makes a pattern that matches nothing.
        return (re.escape(text[at + 1]), at + 2) if at + 1 < len(text) else (NOTHING, at + 1)
    return re.escape(sign), at + 1


def _stars(text: str, at: int) -> tuple[str, int]:
    end = at
    while end < len(text) and text[end] == "*":
        end += 1
    own_part = end - at >= 2 and (at == 0 or text[at - 1] == "/")
    if own_part and end == len(text):
        return ".*" if at == 0 else ".+", end
    if own_part and text[end] == "/":
        return "(?:.*/)?", end + 1
    return "[^/]*", end


def _bracket(text: str, at: int) -> tuple[str, int]:
    """A set of characters such as `[a-z]`, `[!0-9]` or `[[:alpha:]]`; it never matches `/`."""
    end = at + 1
    negated = text[end : end + 1] in ("!", "^")
    end += negated
    first = end
    items = ""
    while end < len(text) and (text[end] != "]" or end == first):
        item, end = _set_item(text, end)
        if item is None:
            return NOTHING, len(text)
        items += item
    if end >= len(text):
        return NOTHING, end
    return f"(?!/)[{'^' if negated else ''}{items or _never(negated)}]", end + 1


def _never(negated: bool) -> str:
    return r"\x00" if negated else r"^\x00-\U0010ffff"


def _set_item(text: str, at: int) -> tuple[str | None, int]:
    """One character, range or named class inside brackets, or None where it is malformed."""
    if text.startswith("[:", at) and (close := text.find(":]", at)) > 0:
        return CLASSES.get(text[at + 2 : close]), close + 2
    low, at = _set_character(text, at)
    if text[at : at + 1] == "-" and at + 1 < len(text) and text[at + 1] != "]":
        high, at = _set_character(text, at + 1)
        # A range that runs backwards holds nothing.
        return (f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""), at
    return re.escape(low), at


def _set_character(text: str, at: int) -> tuple[str, int]:
    escaped = text[at] == "\\" and at + 1 < len(text)
    return text[at + escaped], at + escaped + 1


class GitIgnored:
    """Asks the `.gitignore` files that reach a path: in its folder and those above, up to the repository's root.

    Outside a repository the highest that counts is the current directory's or that of a searched folder.
    """

    def __init__(self, searched: Iterable[str] = ()) -> None:
        self._tops = [os.path.abspath(folder) for folder in (".", *searched)]
        self._folders: dict[str, list[tuple[str, Patterns]]] = {}

    def __call__(self, path: str, is_folder: bool) -> bool:
        """Does git ignore this path itself? Folders above it are not checked."""
        whole = os.path.abspath(path)
        for folder, patterns in self._reaching(os.path.dirname(whole)):
            decision = patterns.decide(relative(whole, folder), is_folder)
            if decision is not None:
                return decision
        return False

    def _reaching(self, folder: str) -> list[tuple[str, Patterns]]:
        """The ignore files that reach into a folder, the nearest first."""
        if folder not in self._folders:
            files = [".gitignore"]
            above = os.path.dirname(folder)
            higher: list[tuple[str, Patterns]] = []
            if os.path.exists(os.path.join(folder, ".git")):
                files.append(os.path.join(".git", "info", "exclude"))
            elif any(_is_below(folder, top) for top in self._tops) or _in_repository(above):
                higher = self._reaching(above)
            own = [(folder, patterns) for name in files if (patterns := _patterns_in(os.path.join(folder, name)))]
            self._folders[folder] = own + higher
        return self._folders[folder]


def relative(path: str, folder: str) -> str:
    """The path seen from a folder, with `/` between its parts."""
    inside = path[len(folder) :].lstrip(os.sep) if _is_below(path, folder) else os.path.relpath(path, folder)
    return inside.replace(os.sep, "/")


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _in_repository(folder: str) -> bool:
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return False
        folder = above
    return True


def _patterns_in(path: str) -> Patterns | None:
    try:
        text = read_regular(path, LARGEST_FILE).decode("utf-8-sig", "surrogateescape")
    except OSError:
        return None
    return Patterns(text.split("\n"))
