"""Runs that were not watched, read from what others logged. `formats/` holds one file for each kind of log.

Numbers are given their meaning by their names (`roles.py`), become events of a record (`events.py`), and are judged by
the rules that can judge such a record (`report.py`).
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

Points = list[tuple[int, float]]
"""Steps in ascending order, each once, and what was logged there."""


class LogError(Exception):
    """A log that cannot be read, in one sentence: what, where, what to do."""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """What was logged of one run."""

    path: Path
    series: dict[str, Points]
    seconds: float | None = None
    """From the first number to the last one, where that was logged."""
    is_cut_off: bool = False
    """Its last entry is incomplete, as after a crash."""


LARGEST = 1e100
"""What is beyond is as good as infinite: squares and sums of it are not numbers any more."""


def ordered(points: Points) -> Points:
    """By step. Of a run that was resumed at an earlier step, what came after that step before is dropped."""
    found: Points = []
    for step, value in points:
        while found and found[-1][0] >= step:
            found.pop()
        if step >= 0:
            found.append((step, math.copysign(math.inf, value) if abs(value) > LARGEST else value))
    return found
