"""Ctrl-C and SIGTERM during trials: the first ends the work with a report, the second ends the process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_to_end: list[Callable[[], None]] = []
"""What ends everything that was started."""
_current: Interrupts | None = None


class Interrupts:
    """As a `with` block around work and report. What was ignored before, as under `nohup`, stays ignored."""

    def __init__(self) -> None:
        self.arrived: int | None = None
        """The signal that asked us to end."""
        self.depth = 0
        """How many blocks of `deferring_interrupts` we are in."""
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a shell reports for a process that this signal ended."""
        return 128 + (self.arrived or signal.SIGINT)

    def __enter__(self) -> Interrupts:
        global _current
        _current = self
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        global _current
        _current = None
        if self.arrived is None:  # a second Ctrl-C counts until the process has ended
            for number, before in self._before.items():
                signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.arrived is not None:
            for end in [*_to_end]:
                with contextlib.suppress(Exception):  # the work may have been about to do the same
                    end()
            with contextlib.suppress(OSError):
                os.write(2, b"unstuck: interrupted\n")
            os._exit(self.exit_code)
        self.arrived = number
        if not self.depth:
            raise KeyboardInterrupt


@contextlib.contextmanager
def deferring_interrupts() -> Iterator[None]:
    """The block is short, and the first Ctrl-C does not cut it off; `has_arrived` says whether it came."""
    interrupts = _current
    if interrupts is not None:
        interrupts.depth += 1
    try:
        yield
    finally:
        if interrupts is not None:
            interrupts.depth -= 1


def only_note_interrupts() -> None:
    """From now on the first Ctrl-C is only noted: everything is known, and all that is left is to report it."""
    if _current is not None:
        _current.depth += 1


def has_arrived() -> bool:
    """Were we asked to end?"""
    return _current is not None and _current.arrived is not None


def end_at_once(end: Callable[[], None]) -> None:
    """Call this before the process ends in a hurry."""
    _to_end.append(end)


def forget_to_end(end: Callable[[], None]) -> None:
    """It has ended."""
    if end in _to_end:
        _to_end.remove(end)
