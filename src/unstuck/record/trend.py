"""Which way a loss went: a direction, and the statistics that support it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

FEWEST = 10
"""Fewer values than this never get a direction."""
HEAD = 25
"""Where a level is needed, the start is at most this many values: a loss may fall within its first hundred steps."""
FIRST = 5
"""A run begins with its first value; so many values decide whether that one was an accident."""
SIGNIFICANT = 4.0
"""A shift must exceed its own standard error this many times to be a direction."""
SMALLEST_MOVE = 0.01
"""A shift below this share of the loss is not a direction, however certain."""
LARGEST_REST = 0.05
"""A loss is flat only if a change above this share of it can be ruled out."""
LARGEST_UNSEEN = 0.2
"""A long, noisy run is flat if no change is visible and one above this share can be ruled out."""
LONG = 100
CRAWL = 0.1
"""A loss that falls by at most this share, and still falls at that rate at the end, crawls."""
LONGEST_CRAWL = 0.16
"""So does one that falls by at most this share in a straight line, as with a learning rate that is far too low; one
that learns bends on its way down."""
STRAIGHT = 0.1
"""A line is straight if the share of its fall in the second half differs from a half by at most this."""
CRAWL_FEWEST = 50
"""With fewer values than this a slow start and a crawl look the same."""


class Direction(StrEnum):
    """Where a loss goes."""

    FALLING = "falling"
    CRAWLING = "crawling"
    """It falls steadily, and too slowly to get anywhere."""
    FLAT = "flat"
    RISING = "rising"
    SPIKING = "spiking"
    NON_FINITE = "non-finite"
    TOO_SHORT = "too short"
    """The noise hides any direction."""
    MOVING = "moving"
    """It rises or spikes, but its goal moves with the model, so it need not fall."""


class Trend(msgspec.Struct, frozen=True):
    """How the loss went from the start of a run to its end, and the statistics behind the direction."""

    word: Direction
    steps: int
    """How many loss values were seen."""
    first: float | None = None
    """The loss at the very start, or what is usual there if the first value is an accident of a noisy loss."""
    last: float | None = None
    """Median of the last tenth."""
    change: float | None = None
    """The shift from start to end as a share of the larger of the two, below 0 for a fall."""
    error: float | None = None
    """Standard error of `change`."""
    noise: float | None = None
    """Standard deviation from one value to the next, as a share of the same."""
    spikes: int = 0
    """How many values jumped up out of the noise, above three times the level before."""
    runs_to_go: float | None = None
    """For a loss that crawls: how many times more steps it needs to reach 0 at this rate."""

    @property
    def falls(self) -> bool:
        """Does it go down, even if slowly?"""
        return self.word in (Direction.FALLING, Direction.CRAWLING)


class _Shift(msgspec.Struct, frozen=True):
    """From the median of the start to that of the end."""

    size: float
    error: float
    scale: float

    @property
    def is_direction(self) -> bool:
        return abs(self.size) > max(SIGNIFICANT * self.error, SMALLEST_MOVE * self.scale)

    def is_nothing(self, steps: int) -> bool:
        """Can any noticeable change be ruled out?"""
        largest = abs(self.size) + 2 * self.error
        unseen = steps >= LONG and abs(self.size) <= 2 * self.error and largest <= LARGEST_UNSEEN * self.scale
        return unseen or largest <= LARGEST_REST * self.scale


def trend_of(losses: Sequence[float]) -> Trend:
    """The trend of a loss, one value per step."""
    finite = [value for value in losses if math.isfinite(value)]
    tail = max(1, min(3, len(losses) // 2), len(losses) // 10)
    first = start_of(finite)
    last = _median([value for value in losses[-tail:] if math.isfinite(value)])
    if losses and (not math.isfinite(losses[-1]) or last is None):
        return Trend(Direction.NON_FINITE, len(losses), first, last)
    if len(finite) < FEWEST:
        return Trend(Direction.TOO_SHORT, len(losses), first, last)
    largest = max(abs(value) for value in finite)
    # Every comparison is relative: a common factor changes nothing, and keeps huge losses from overflowing.
    trend = _judged([value / largest for value in finite]) if largest else Trend(Direction.FLAT, 0, change=0.0)
    return msgspec.structs.replace(trend, steps=len(losses), first=first, last=last)


def start_of(values: Sequence[float]) -> float | None:
    """Where a loss begins: its first value, unless that is an accident of noise; then the usual one of the start."""
    head = values[:FIRST]
    if len(head) < FIRST:
        return head[0] if head else None
    usual, rest = _median(head) or 0.0, head[1:]
    near = min(abs(head[0]), abs(usual)) * 3 >= max(abs(head[0]), abs(usual)) and head[0] * usual > 0
    apart = abs(head[0] - usual) > 4 * (max(rest) - min(rest))
    return head[0] if near or apart or _is_steady(head, usual - head[0]) else usual


def _is_steady(head: Sequence[float], way: float) -> bool:
    """Do all steps lead the same way, or down but for one?"""
    return sum((after - before) * way > 0 for before, after in itertools.pairwise(head)) >= len(head) - 1 - (way < 0)


def _judged(values: Sequence[float]) -> Trend:
    noise = _noise(values)
    tenth, third = max(3, len(values) // 10), len(values) // 3
    # The very start sees a loss that fell within a few steps, the short one a loss that fell within some dozens; the
    # long thirds see a slow drift under more noise.
    at_once = _at_once(values, tenth, noise)
    short, long = _shift(values, min(HEAD, tenth), tenth, noise), _shift(values, third, third, noise)
    decisive = at_once if at_once.is_direction else short if short.is_direction else long
    spikes = 0 if _has_fallen(values, third) else len(_spikes(values, noise))
    togo = None
    if spikes >= 3:
        word = Direction.SPIKING
    elif decisive.is_direction:
        togo = _runs_to_go(values, decisive, tenth) if decisive.size < 0 else None
        falls = Direction.FALLING if togo is None else Direction.CRAWLING
        word = Direction.RISING if decisive.size > 0 else falls
    else:
        word = Direction.FLAT if long.is_nothing(len(values)) else Direction.TOO_SHORT
    scale = decisive.scale or 1.0
    shares = (decisive.size / scale, decisive.error / scale, noise / scale)
    return Trend(word, 0, None, None, *shares, spikes, togo)


def _shift(values: Sequence[float], head: int, tail: int, noise: float) -> _Shift:
    first, last = _median(values[:head]) or 0.0, _median(values[-tail:]) or 0.0
    # 1.2533 is the standard error of a median of normal values, relative to that of their mean.
    error = 1.2533 * noise * math.sqrt(1 / head + 1 / tail)
    return _Shift(last - first, error, max(abs(first), abs(last)))


def _at_once(values: Sequence[float], tail: int, noise: float) -> _Shift:
    """From the first value to the end, if the loss more than halved within the start; else nothing."""
    first, soon, last = (
        start_of(values) or 0.0,
        _median(values[: min(HEAD, tail)]) or 0.0,
        _median(values[-tail:]) or 0.0,
    )
    if not (0 <= soon < 0.5 * first and last < 0.5 * first):
        return _Shift(0.0, 0.0, 0.0)
    return _Shift(last - first, 1.2533 * noise * math.sqrt(1 + 1 / tail), first)


def _has_fallen(values: Sequence[float], third: int) -> bool:
    """Is the average of the last third, spikes and all, far below the start? Then what jumps up comes down again, as
    the loss of a batch of one example does."""
    first = _median(values[: min(HEAD, third)]) or 0.0
    late = values[-third:]
    return 0 < math.fsum(late) / len(late) < 0.5 * first


def _runs_to_go(values: Sequence[float], fall: _Shift, tenth: int) -> float | None:
    """How far from 0 a loss is that falls steadily and slowly; None for one that fell, or has levelled off."""
    first, last = _median(values[:tenth]) or 0.0, _median(values[-tenth:]) or 0.0
    middle = _median(values[(len(values) - tenth) // 2 :][:tenth]) or 0.0
    whole = first - last
    if len(values) < CRAWL_FEWEST or whole <= 0 or last <= 0 or -fall.size > LONGEST_CRAWL * fall.scale:
        return None
    # Half of it in the second half would be a straight line; one that levels off has already fallen.
    late = (middle - last) / whole
    slow = whole <= CRAWL * fall.scale and late >= 0.3
    straight = whole <= LONGEST_CRAWL * fall.scale and abs(late - 0.5) <= STRAIGHT
    return last / whole if slow or straight else None


def _noise(values: Sequence[float]) -> float:
    """Standard deviation from one step to the next, robust to trends and outliers."""
    changes = [abs(after - before) for before, after in itertools.pairwise(values)]
    # 1.4826 turns a median deviation into a standard deviation; a difference of two has sqrt(2) of it.
    return (_median(changes) or 0.0) * 1.4826 / math.sqrt(2)


def spikes_in(values: Sequence[float]) -> list[int]:
    """Where a loss of finite values jumps up out of its noise, above three times its level; empty for one that has
    fallen far in spite of it."""
    if len(values) < FEWEST or _has_fallen(values, len(values) // 3):
        return []
    return _spikes(values, _noise(values))


def _spikes(values: Sequence[float], noise: float) -> list[int]:
    """Values that jump up: out of the noise, above three times the level before, visibly against the start."""
    window = min(HEAD, max(3, len(values) // 10))
    visible = 0.1 * abs(_median(values[:window]) or 0.0)
    found = []
    for index in range(window, len(values)):
        if values[index] - values[index - 1] > max(10 * noise, visible):
            level = _median(values[index - window : index]) or 0.0
            if values[index] - level > max(10 * noise, visible, 2 * abs(level)):
                found.append(index)
    return found if len(found) <= len(values) // 10 else []


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
