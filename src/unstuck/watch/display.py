"""A watch in a cell of a notebook: shown again while the run goes on, at a small share of its time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from unstuck.events import Event
from unstuck.record.pace import Pace

SHARE = 0.01
"""Of the run's time, what drawing may take."""
EVERY = 2.0
"""Seconds between two drawings, at least."""

Bundle = dict[str, str]
"""The same content by its kinds, such as `text/html`."""


class Display:
    """Listens to a run, and draws it again where a cell has shown it."""

    def __init__(self, draw: Callable[[], Bundle]) -> None:
        self._draw = draw
        self._process = os.getpid()
        self._handle: Any = None
        self._pace = Pace(SHARE)
        self._next = 0.0

    def show(self, bundle: Bundle) -> None:
        """In this cell. What an earlier cell shows stays as it is."""
        ipython = sys.modules.get("IPython")
        if ipython is not None:
            handle = ipython.display.display(bundle, raw=True, display_id=True)
            terminal = getattr(sys.modules.get("IPython.terminal.interactiveshell"), "TerminalInteractiveShell", ())
            # A terminal does not draw again: it would print another line each time.
            self._handle = None if isinstance(ipython.get_ipython(), terminal) else handle
        self._next = time.perf_counter() + EVERY

    def heard(self, event: Event) -> None:
        """It is read from the record."""

    def window_ended(self) -> None:
        """A step is over: draw, if it is time to."""
        if self._handle is None or time.perf_counter() < self._next or not self._pace.is_due():
            return
        self._next = time.perf_counter() + EVERY
        began = time.thread_time()
        self.update()
        self._pace.spent(time.thread_time() - began)

    def update(self) -> None:
        """Draw it as it is now, if a cell shows it."""
        if self._handle is not None and os.getpid() == self._process:
            self._handle.update(self._draw(), raw=True)
