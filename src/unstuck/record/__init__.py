"""The append-only file of one process's events. Opening one never runs code; nothing here imports torch."""

from unstuck.record.reader import has_ended, read
from unstuck.record.record import Record
from unstuck.record.store import RECORD_NAME, RecordError
from unstuck.record.writer import Writer

__all__ = ["RECORD_NAME", "Record", "RecordError", "Writer", "has_ended", "read"]
