"""Which way a loss went, in one word that can be defended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

FEWEST = 10
"""Fewer values than this never get a direction."""
HEAD = 25
"""The start of a run is at most this many values: a loss may fall within its first hundred steps of many."""
SIGNIFICANT = 4.0
"""A shift must exceed its own standard error this many times to be a direction."""
SMALLEST_MOVE = 0.01
"""A shift below this share of the loss is no direction, however certain."""
LARGEST_REST = 0.05
"""A loss is flat only if a change above this share of it can be ruled out."""


class Trend(msgspec.Struct, frozen=True):
    """How the loss went from the start of a run to its end."""

    word: str
    """`falling`, `flat`, `rising`, `spiking`, `non-finite`, or `too short` to tell any from the noise."""
    steps: int
    """How many loss values were seen."""
    first: float | None = None
    """Median of the start: the first tenth, at most 25 values."""
    last: float | None = None
    """Median of the last tenth."""


def trend_of(losses: Sequence[float]) -> Trend:
    """The trend of a loss, one value per step."""
    finite = [value for value in losses if math.isfinite(value)]
    tail = max(1, min(3, len(losses) // 2), len(losses) // 10)
    first = _median(finite[: min(HEAD, tail)])
    last = _median([value for value in losses[-tail:] if math.isfinite(value)])
    if losses and (not math.isfinite(losses[-1]) or last is None):
        return Trend("non-finite", len(losses), first, last)
    if len(finite) < FEWEST:
        return Trend("too short", len(losses), first, last)
    largest = max(abs(value) for value in finite)
    # Every comparison is relative: a common factor changes nothing, and keeps huge losses from overflowing.
    word = _word([value / largest for value in finite]) if largest else "flat"
    return Trend(word, len(losses), first, last)


def _word(values: Sequence[float]) -> str:
    noise = _noise(values)
    if _spikes(values, noise) >= 3:
        return "spiking"
    tenth, third = max(3, len(values) // 10), len(values) // 3
    # The short start sees a loss that fell at once; the long thirds see a slow drift under more noise.
    for head, tail in ((min(HEAD, tenth), tenth), (third, third)):
        shift, error, scale = _shift(values, head, tail, noise)
        if abs(shift) > max(SIGNIFICANT * error, SMALLEST_MOVE * scale):
            return "falling" if shift < 0 else "rising"
    # The loop ends with the thirds, the comparison with the smaller error.
    return "flat" if abs(shift) + 2 * error <= LARGEST_REST * scale else "too short"


def _shift(values: Sequence[float], head: int, tail: int, noise: float) -> tuple[float, float, float]:
    """From the median of the start to that of the end: the shift, its standard error, the scale."""
    first, last = _median(values[:head]) or 0.0, _median(values[-tail:]) or 0.0
    # 1.2533 is the standard error of a median of normal values, relative to that of their mean.
    error = 1.2533 * noise * math.sqrt(1 / head + 1 / tail)
    return last - first, error, max(abs(first), abs(last))


def _noise(values: Sequence[float]) -> float:
    """Standard deviation from one step to the next, deaf to trend and to outliers."""
    changes = [abs(after - before) for before, after in itertools.pairwise(values)]
    # 1.4826 turns a median deviation into a standard deviation; a difference of two has sqrt(2) of it.
    return (_median(changes) or 0.0) * 1.4826 / math.sqrt(2)


def _spikes(values: Sequence[float], noise: float) -> int:
    """How many values jump up: out of the noise, above thrice the level before, visibly against the start."""
    window = min(HEAD, max(3, len(values) // 10))
    visible = 0.1 * abs(_median(values[:window]) or 0.0)
    count = 0
    for index in range(window, len(values)):
        if values[index] - values[index - 1] > max(10 * noise, visible):
            level = _median(values[index - window : index]) or 0.0
            count += values[index] - level > max(10 * noise, visible, 2 * abs(level))
    return count if count <= len(values) // 10 else 0


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
