"""What writer and reader share: where a record lies, and how its troubles are told."""

from __future__ import annotations

import os
from pathlib import Path

RECORD_NAME = "events.jsonl"


class RecordError(Exception):
    """A record that cannot be read or written; its text is one sentence: what, where, what to do."""


def record_file(path: str | os.PathLike[str]) -> Path:
    """The file itself, whether `path` names it or the run directory around it."""
    place = Path(path)
    if place.suffix == ".jsonl":
        return place
    return place / RECORD_NAME
