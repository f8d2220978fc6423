"""The append-only file of one process's events, and what it shows: its trainings, where their losses went, the outcome.

Opening one never runs code; nothing here imports torch.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unstuck.record.reader import has_ended, read
    from unstuck.record.record import Record
    from unstuck.record.store import RECORD_NAME, RecordError
    from unstuck.record.writer import Writer

__all__ = ["RECORD_NAME", "Record", "RecordError", "Writer", "has_ended", "read"]

# Loaded at first use: lint needs what a verdict consists of, but no file of a run.
_HOMES = {"RECORD_NAME": "store", "Record": "record", "RecordError": "store", "Writer": "writer"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'unstuck.record' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"unstuck.record.{_HOMES.get(name, 'reader')}"), name)
