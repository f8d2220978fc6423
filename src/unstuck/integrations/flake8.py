"""A plugin for flake8: the same findings, under codes that flake8 accepts.

flake8 wants up to three letters and three digits, and shows by default what begins with the name of the entry point.
So `O12` is `UNO012` there: `UN`, the letter of the family, and the number with three digits.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence

from unstuck._version import __version__
from unstuck.integrations.here import seen_in
from unstuck.lint.engine import lint_text
from unstuck.lint.settings import Settings, SettingsError, settings_for
from unstuck.lint.workers import Reader

CODE = re.compile(r"([A-Z])(\d{1,3})")
FOREIGN = "UNX000"
"""For rules of other makers whose codes do not fit."""


class Plugin:
    """Lints the text flake8 gives it, which may come from stdin."""

    name = "unstuck"
    version = __version__

    def __init__(self, tree: ast.AST, filename: str, lines: Sequence[str]) -> None:
        self._path = filename
        self._text = "".join(lines)

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        """Line, column from 0 and text of every finding."""
        result = lint_text(self._path, self._text, _settings(self._path), _reader())
        for seen in seen_in(self._path, result):
            lead = seen.diagnosis.lead
            text = f"{flake8_code(lead.code)} {lead.name}: {seen.sentence}"
            yield seen.place.line, max(seen.place.column - 1, 0), text, Plugin


@functools.cache
def _reader() -> Reader:
    """One process for all files of a run of flake8; what they import is read once, not once for every file."""
    return Reader(remembers=True)


def _settings(path: str) -> Settings:
    try:
        return settings_for([path])
    except SettingsError as error:
        from flake8.exceptions import ExecutionError  # type: ignore[import-untyped]

        raise ExecutionError(f"unstuck: {error}") from None


def flake8_code(code: str) -> str:
    """The code under which flake8 knows a rule."""
    match = CODE.fullmatch(code)
    return f"UN{match.group(1)}{int(match.group(2)):03d}" if match else FOREIGN
