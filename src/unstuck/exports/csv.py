"""CSV: a row for each number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unstuck.exports import Kind
from unstuck.watch.series import Row, rows

if TYPE_CHECKING:
    from unstuck.record import Record

KIND = Kind.TEXT
NEEDS = EXTRA = ""


def content(record: Record, path: Path) -> str:
    """The whole table."""
    return "".join(_lines(sorted(rows(record), key=lambda row: row.step)))


def _lines(table: Sequence[Row]) -> Iterator[str]:
    yield ",".join(Row._fields) + "\n"
    for row in table:
        yield ",".join(_cell(value) for value in row) + "\n"


def _cell(value: object) -> str:
    """A name of a record that a spreadsheet would take for a formula becomes text."""
    if not isinstance(value, str):
        return str(value)
    text = f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if any(letter in text for letter in ',"\n\r') else text
