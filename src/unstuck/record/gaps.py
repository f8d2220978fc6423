"""What is missing from a record, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unstuck.record.record import Record

LONGEST_NOTE = 1000
MOST_LINES_NAMED = 6


def gaps_in(record: Record) -> list[str]:
    """What could not be watched or read, each once."""
    notes = list(dict.fromkeys(_shortened(note.text) for note in record.notes))
    if record.damaged_lines:
        notes.append(_damage(record.damaged_lines))
    if record.ended is None and not record.is_running:
        notes.append("what came after the last event on record, which has no end")
    return notes


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_NOTE else f"{text[:LONGEST_NOTE]} ..."


def _damage(lines: Sequence[int]) -> str:
    """Where the record was damaged."""
    named = ", ".join(map(str, lines[:MOST_LINES_NAMED]))
    more = len(lines) - MOST_LINES_NAMED
    if len(lines) == 1:
        return f"what line {named} of the record says: it is damaged and was skipped"
    others = f" and {more:,} more" if more > 0 else ""
    return f"what {len(lines):,} lines of the record say ({named}{others}): they are damaged and were skipped"
