"""Where a loss went that was given one and the same batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.experiments.shared.floors import Levels
from unstuck.findings.curve import Curve

if TYPE_CHECKING:
    from unstuck.record.trend import Trend

FEWEST = 20
REACHED = 0.1
"""Of the way from a guess to the floor, what may be left."""
FAR = 0.5
FALLEN = 0.25
"""Of a loss whose floor is not known, what may be left."""
LEVEL = 5.0
"""A loss levels off if its first half fell so many times as far as its second."""
NOTHING = 1e-5
"""A loss that changed by less than this share has not moved."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one run on one batch showed."""

    state: str
    """`passed`, `stuck`, `falling`, `broken` (NaN or rising), `below` its floor, `between`, or `nothing` to read."""
    start: float | None = None
    end: float | None = None
    lowest: float | None = None
    left: float | None = None
    steps: int = 0
    moved: bool = True
    levels_off: bool = False
    """Has it fallen, and almost all of that in the first half?"""
    levels: Levels = Levels()


def read(curve: Curve, levels: Levels) -> Reading:
    """Where a loss went on one batch."""
    values = curve.finite
    if len(values) < FEWEST:
        return Reading(state="broken" if curve.is_broken else "nothing", steps=len(values), levels=levels)
    tail = sorted(values[-max(5, len(values) // 10) :])
    end = tail[len(tail) // 2]
    left = _left(values[0], end, levels)
    spread = max(values) - min(values)
    return Reading(
        state="broken" if curve.is_broken else _state(values, end, left, levels),
        start=values[0],
        end=end,
        lowest=min(values),
        left=left,
        steps=len(values),
        moved=spread > NOTHING * max(abs(values[0]), 1e-12),
        levels_off=_levels_off(values, end),
        levels=levels,
    )


def _levels_off(values: Sequence[float], end: float) -> bool:
    middle = values[len(values) // 2]
    return values[0] - middle > max(0.0, LEVEL * (middle - end)) and values[0] - end > 0.1 * abs(values[0])


def _left(start: float, end: float, levels: Levels) -> float | None:
    """The share of the way to the floor that is left, from the loss of the best constant answer if that is lower."""
    if levels.floor is None:
        return None
    begin = start if levels.constant is None else min(start, levels.constant)
    # A first loss may be absurd: the way down from there says nothing of what was learned.
    high = start if levels.guess is None else min(start, levels.guess)
    if begin - levels.floor < 0.05 * (high - levels.floor):
        begin = start  # a constant answer is all there is to learn
    way = begin - levels.floor
    return (end - levels.floor) / way if way > 1e-9 else 0.0


def _state(values: Sequence[float], end: float, left: float | None, levels: Levels) -> str:
    from unstuck.record.trend import trend_of

    late = trend_of(values[len(values) // 2 :])
    whole = trend_of(values)
    falls = late.falls or _creeps(values[len(values) // 2 :])
    if left is None:
        return _state_without_floor(values[0], end, whole, falls)
    if left < -0.05 and end < (levels.floor or 0.0) - 1e-3:
        return "below"
    if left <= REACHED or (left <= FAR and falls):
        return "passed"
    if whole.word in ("rising", "spiking") and left > 1:
        return "broken"
    if falls:
        return "falling"
    return "stuck" if left > FAR and late.word in ("flat", "rising") else "between"


def _state_without_floor(start: float, end: float, whole: Trend, falls: bool) -> str:
    if start > 0 and 0 <= end <= FALLEN * start:
        return "passed"
    return "stuck" if whole.word == "flat" and not falls else "falling" if falls else "between"


def _creeps(values: Sequence[float]) -> bool:
    """Does it fall almost every time, be it ever so little? On one batch there is no noise to hide it."""
    downs = sum(after < before for before, after in itertools.pairwise(values))
    return downs >= 0.8 * (len(values) - 1) and values[-1] < values[0]
