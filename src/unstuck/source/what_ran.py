"""The script of a run, if its text is still what ran."""

from __future__ import annotations

import os
from pathlib import Path

from unstuck.record.record import Record
from unstuck.regular import LARGEST_SCRIPT, read_regular
from unstuck.source import Script, SourceError, read_script


def script_of(record: Record) -> Script | None:
    """The script of a run as text, if it can be read and is still what ran."""
    return next((readable_script(path) for path in _possible_files(record) if is_what_ran(path, record)), None)


def is_what_ran(path: str, record: Record) -> bool:
    """Is the text of this file the one the run began with?"""
    import hashlib

    try:
        return hashlib.sha256(read_regular(path, LARGEST_SCRIPT)).hexdigest() == record.started.source_hash
    except OSError:
        return False


def _possible_files(record: Record) -> tuple[str, ...]:
    """The script itself, or where a module of that name would lie."""
    module = record.started.script.replace(".", os.sep)
    return (record.started.script, f"{module}.py", os.path.join(module, "__main__.py"))


def readable_script(path: str) -> Script | None:
    try:
        read_regular(path, LARGEST_SCRIPT)  # a record may name anything
        return read_script(Path(path))
    except (OSError, ValueError, SourceError, RecursionError):
        return None
