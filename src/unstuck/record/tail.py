"""A record that is being written: each look reads only what is new."""

from __future__ import annotations

import os
from pathlib import Path

from unstuck.events import Event, RunEnded
from unstuck.record.in_use import is_locked
from unstuck.record.lines import Damaged
from unstuck.record.reader import MOST_DAMAGED, MOST_EVENTS, decoded
from unstuck.record.record import Record
from unstuck.record.store import LARGEST_RECORD, record_file
from unstuck.regular import open_regular


class Tail:
    """The events of one record so far. A file that was replaced by a shorter one is read again from its start."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = record_file(path)
        self.size = 0
        """Bytes that have been read."""
        self._forget()

    def _forget(self) -> None:
        self.size = 0
        self._lines = 0
        self._events: list[Event] = []
        self._damaged: list[int] = []
        self._ended = False

    def look(self) -> bool:
        """Read the lines that were added; was there any? Raises OSError where there is no such file."""
        with open_regular(self.path) as stream:
            length = os.fstat(stream.fileno()).st_size
            if length < self.size:
                self._forget()
            stream.seek(self.size)
            before = self._lines
            while line := stream.readline(LARGEST_RECORD + 1 - self.size):
                if not line.endswith(b"\n") or self.size + len(line) > LARGEST_RECORD or self._is_full:
                    break
                self.size += len(line)
                self._lines += 1
                self._add(line)
        return self._lines > before

    @property
    def _is_full(self) -> bool:
        return len(self._events) >= MOST_EVENTS or len(self._damaged) > MOST_DAMAGED

    def _add(self, line: bytes) -> None:
        try:
            event = decoded(line)
        except Damaged:
            self._damaged.append(self._lines)
            return
        if event is not None:
            self._events.append(event)
            self._ended = self._ended or isinstance(event, RunEnded)

    @property
    def is_running(self) -> bool:
        """Is it being written by a living process?"""
        return not self._ended and is_locked(self.path)

    @property
    def is_empty(self) -> bool:
        """Has no event been read yet?"""
        return not self._events

    def record(self) -> Record:
        """What has been read."""
        return Record(self.path, tuple(self._events), not self._ended, tuple(self._damaged), is_running=self.is_running)
