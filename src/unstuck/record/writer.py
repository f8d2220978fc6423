"""Appends events, one `os.write` each, so that a killed process loses nothing that was recorded."""

from __future__ import annotations

import math
import os
from pathlib import Path

from unstuck.events import Crash, Event, NonFinite, Note, RunEnded, RunStarted
from unstuck.record.in_use import lock
from unstuck.record.lines import encode
from unstuck.record.store import DISK_BUDGET, RecordError, record_file

_RESERVE = 64 * 2**10
"""Kept free for the outcome, and half of it for the very last line."""
_HIGH = 480
_SUMMARIES = (RunStarted, RunEnded, NonFinite, Crash, Note)
LEFT_FREE = 64 * 2**20
"""Bytes of the disk that a record does not use, or a tenth of a small one: they are the program's, for its weights."""
LOOK_AFTER = 2**18
"""Bytes written between two looks at how much is free."""


def out_of_the_way(descriptor: int) -> int:
    """The same file under a number that a program, which gets the lowest free ones, hardly ever comes to."""
    try:
        import fcntl
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH if limit > 2 * _HIGH else max(limit - 8, 3))
    except (ImportError, OSError):
        return descriptor
    os.close(descriptor)
    return high


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
        self._next_look = 0
        self._only_summaries = False
        self._descriptor: int | None = None
        self._open()

    def __call__(self, event: Event) -> None:
        """Append one event."""
        if self._descriptor is None or (self._only_summaries and not isinstance(event, _SUMMARIES)):
            return
        free, floor = self._disk(self._descriptor)
        if free < _RESERVE:
            self._stop(OSError("the disk is full"))
            return
        line = encode(event)
        if self._written + len(line) <= self._limit_for(event):
            self._append(line)
        elif not self._only_summaries:
            size = f"{self._budget / 2**20:.3g} MB"
            self._keep_summaries(event.step, f"The record reached its budget of {size}")
            self(event)
        if free < floor and not self._only_summaries:
            self._keep_summaries(event.step, "The disk is almost full")

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
            self._descriptor = out_of_the_way(os.open(self.path, flags, 0o644))
            lock(self._descriptor)  # so that `unstuck clean` leaves it alone
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

    def _keep_summaries(self, step: int, reason: str) -> None:
        self._only_summaries = True
        self._budget = min(self._budget, self._written + _RESERVE)
        self(Note(step=step, text=f"{reason}; after this only the outcome is kept."))

    def _disk(self, descriptor: int) -> tuple[float, float]:
        """How many bytes are free, and how many are to stay so; plenty where there is no need to look."""
        if self._written < self._next_look and not self._only_summaries:
            return math.inf, 0
        self._next_look = self._written + LOOK_AFTER
        try:
            disk = os.fstatvfs(descriptor)
        except (AttributeError, OSError):  # Windows cannot say
            return math.inf, 0
        size = disk.f_blocks * disk.f_frsize  # 0 where a file system does not say
        return (disk.f_bavail * disk.f_frsize, min(LEFT_FREE, size // 10)) if size else (math.inf, 0)

    def _stop(self, error: OSError) -> None:
        self.warning = self.warning or f"Recording to {self.path} stopped: {error.strerror or error}."
        self.close()
