"""Ctrl-C pressed several times in a row ends the program, and must not cost the report on it."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

PATIENCE = 2.0
"""Seconds after the end of the program, or after the last Ctrl-C, in which another one is taken to be meant for it."""


class Interrupts:
    """As a `with` block around program and report. Nothing is changed before `program_ended` is called."""

    def __init__(self) -> None:
        self._before: Any = None
        self._until = 0.0
        self._was_needed = False

    def __enter__(self) -> Interrupts:
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None and not self._was_needed:  # whoever is impatient still is when the process ends
            signal.signal(signal.SIGINT, self._before)

    def program_ended(self) -> None:
        """From now on Ctrl-C waits for a moment."""
        # A background job ignores Ctrl-C, which is meant for the program in the foreground: it stays ignored.
        is_heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        if is_heard and threading.current_thread() is threading.main_thread():
            self._until = time.monotonic() + PATIENCE
            self._before = signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now > self._until:
            raise KeyboardInterrupt
        self._was_needed, self._until = True, now + PATIENCE
