"""How often a record that is being written is looked at: as often as costs little."""

from __future__ import annotations

import time

SHARE = 0.015
"""Of a core's time that one kind of work may take while a run goes on."""
SHORTEST = 0.7
"""Seconds between two looks at a run."""
CREDIT = 0.6
"""Seconds of work that are not held against it, since a run should be seen soon."""


class Pace:
    """When work is due again that must not take more than a share of the time, and a little at the beginning."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._began = self._last = time.monotonic()
        self._spent = self._took = 0.0

    def is_due(self) -> bool:
        """Is it time?"""
        now = time.monotonic()
        if self._spent and now - self._last < SHORTEST:
            return False
        return self._spent + self._took <= CREDIT + self._share * (now - self._began)

    def spent(self, seconds: float) -> None:
        """The work took so long, just now."""
        self._last = time.monotonic()
        self._spent += seconds
        self._took = seconds
