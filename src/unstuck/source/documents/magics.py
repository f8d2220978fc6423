"""What a notebook cell holds besides Python: magics, shell commands and questions, replaced line by line."""

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
"""What an assignment of a magic's result is given instead: a value that nothing is known of."""


def python_lines(lines: Sequence[str]) -> list[str]:
    """The lines of a cell, as many as there are, with those that are no Python made harmless."""
    first = next((index for index, line in enumerate(lines) if line.strip()), 0)
    kept = list(lines)
    if lines and lines[first].startswith("%%"):
        if not STILL_PYTHON.match(lines[first]):
            return [""] * len(lines)
        kept[first] = ""
    # One at a time, since a line inside a string may look like a magic and be none.
    for _ in range(MOST_LOOKS):
        wrong = _wrong_line(kept)
        if wrong is None:
            return kept
        if not _tame(kept, wrong):
            break
    for index in range(len(kept)):
        _tame(kept, index)
    return kept


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


def _tame(lines: list[str], wrong: int) -> bool:
    """Make the magic on this line harmless. False: there is none."""
    assigned = ASSIGNED.match(lines[wrong])
    if not assigned and not MAGIC.match(lines[wrong]):
        return False
    _replace(lines, wrong, assigned[1] + OUTCOME if assigned else _indent(lines[wrong]) + "pass")
    return True


def _replace(lines: list[str], index: int, text: str) -> None:
    """A command that goes on after a backslash goes on being replaced."""
    while lines[index].rstrip().endswith("\\") and index + 1 < len(lines):
        lines[index], index = text, index + 1
        text = ""
    lines[index] = text


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
