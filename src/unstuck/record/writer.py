"""Appends events, one `os.write` each, so that a killed process loses nothing that was recorded."""

from __future__ import annotations

import os
from pathlib import Path

from unstuck.events import Crash, Event, NonFinite, Note, RunEnded
from unstuck.record.lines import encode
from unstuck.record.store import DISK_BUDGET, RecordError, record_file

_RESERVE = 64 * 2**10
"""Kept free for the outcome, and half of it for the very last line."""
_SUMMARIES = (RunEnded, NonFinite, Crash, Note)


class Writer:
    """Writes events to a new file of at most `budget` bytes. A full or read-only disk stops the recording, never the
    program.

    `path` is the run directory (made if missing) or a `.jsonl` file; an existing record is not overwritten.
    """

    def __init__(self, path: str | os.PathLike[str], *, budget: int = DISK_BUDGET) -> None:
        self.path: Path = record_file(path)
        self.warning: str | None = None
        """Why recording stopped, if it did."""
        self._budget = budget
        self._written = 0
        self._only_summaries = False
        self._descriptor: int | None = None
        self._open()

    def __call__(self, event: Event) -> None:
        """Append one event."""
        if self._descriptor is None or (self._only_summaries and not isinstance(event, _SUMMARIES)):
            return
        line = encode(event)
        if self._written + len(line) <= self._limit_for(event):
            self._append(line)
        elif not self._only_summaries:
            self._enter_summary_mode(event.step)
            self(event)

    def close(self) -> None:
        """Close the file. Later events are ignored."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            try:
                os.close(descriptor)
            except OSError as error:
                self._stop(error)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, flags, 0o644)
        except FileExistsError as error:
            raise RecordError(
                f"There is already a record at {self.path}; choose another place or delete it first."
            ) from error
        except OSError as error:
            self._stop(error)

    def _limit_for(self, event: Event) -> int:
        reserve = min(_RESERVE, self._budget // 2)
        if not self._only_summaries:
            return self._budget - reserve
        return self._budget if isinstance(event, RunEnded) else self._budget - reserve // 2

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._stop(error)
            return
        self._written += written
        if written < len(line):
            self._stop(OSError("the disk is full"))

    def _enter_summary_mode(self, step: int) -> None:
        self._only_summaries = True
        size = f"{self._budget / 2**20:.3g} MB"
        self(
            Note(
                step=step,
                text=f"The record reached its budget of {size}; after this only the outcome is kept.",
            )
        )

    def _stop(self, error: OSError) -> None:
        self.warning = self.warning or f"Recording to {self.path} stopped: {error.strerror or error}."
        self._descriptor = None
