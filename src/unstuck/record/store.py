"""What writer and reader share: where a record is, how large it may be, and the errors about it."""

from __future__ import annotations

import os
from pathlib import Path

RECORD_NAME = "events.jsonl"
DISK_BUDGET = 64 * 2**20
"""Bytes of a record, at most."""
LARGEST_RECORD = DISK_BUDGET + 2**20


class RecordError(Exception):
    """A record that cannot be read or written; its text is one sentence: what, where, what to do."""


def record_file(path: str | os.PathLike[str]) -> Path:
    """The file itself, whether `path` names it or the run directory around it."""
    place = Path(path)
    if place.suffix == ".jsonl":
        return place
    return place / RECORD_NAME
