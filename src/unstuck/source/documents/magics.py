"""What a notebook cell contains besides Python: magics, shell commands and `?` queries, replaced line by line."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence

from unstuck.lazy import pattern

STILL_PYTHON = pattern(r"%%(time|timeit|capture|prun|python3?|pypy|notify|memit|mprun|lprun)\b")
MAGIC = pattern(r"\s*([%!?]|(pip3?|conda|mamba|ls|cd|pwd|cat|cp|mv|rm|mkdir|unzip|wget|git)(\s|$))|.*\?\s*$")
ASSIGNED = pattern(r"(\s*[\w.,\s*\[\]'\"]+=\s*)[%!]")
MOST_LOOKS = 50
OUTCOME = "get_ipython()"
"""Replaces a magic whose result is assigned: a call whose value is unknown."""


def python_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a cell, the same number, with those that are not Python replaced."""
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    new = list(lines)
    if lines and lines[first].startswith("%%"):
        if not STILL_PYTHON.match(lines[first]):
            return [""] * len(lines)
        new[first] = ""
    # One at a time, since a line inside a string may look like a magic.
    for _ in range(MOST_LOOKS):
        wrong = _wrong_line(new)
        if wrong is None:
            return new
        if not _replace_magic(new, wrong):
            break
    for index in range(len(new)):
        _replace_magic(new, index)
    return new


def _wrong_line(lines: Sequence[str]) -> int | None:
    """The index of the line at which the cell stops being Python."""
    if not any(MAGIC.match(line) or ASSIGNED.match(line) for line in lines):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except SyntaxError as problem:
        return min(max((problem.lineno or 1) - 1, 0), len(lines) - 1)
    except (RecursionError, MemoryError, ValueError):
        return None
    return None


def _replace_magic(lines: list[str], wrong: int) -> bool:
    """Replace the magic on this line; False if there is none."""
    assigned = ASSIGNED.match(lines[wrong])
    if not assigned and not MAGIC.match(lines[wrong]):
        return False
    _replace(lines, wrong, assigned[1] + OUTCOME if assigned else _indent(lines[wrong]) + "pass")
    return True


def _replace(lines: list[str], index: int, text: str) -> None:
    """Replace a line, and the lines after it that a backslash continues."""
    while lines[index].rstrip().endswith("\\") and index + 1 < len(lines):
        lines[index], index = text, index + 1
        text = ""
    lines[index] = text


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
