"""When has a loss run away?"""

from __future__ import annotations

import math

TIMES = 4.0
"""So many times the lowest it has been."""
LOST = 0.25
"""And lost so much of what was gained: a loss near 0 swings by more than its own size and is well."""
WINDOW = 5
"""Values whose median is its level, so that one bad batch is not taken for it."""


class Divergence:
    """Follows a loss from step to step."""

    def __init__(self) -> None:
        self.seen = False
        self._lowest = self._first = math.inf
        self._recent: list[float] = []

    def follow(self, loss: float) -> None:
        """The loss of one more step."""
        self._recent = [*self._recent[1 - WINDOW :], loss]
        if len(self._recent) < WINDOW:
            return
        level = sorted(self._recent)[WINDOW // 2]
        self._first = level if self._first == math.inf else self._first
        self._lowest = min(self._lowest, level)
        rise = level - self._lowest
        enough = max((TIMES - 1) * abs(self._lowest), LOST * (self._first - self._lowest)) + 1e-8
        self.seen |= not math.isfinite(level) or rise > enough
