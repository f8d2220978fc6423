"""From loss to colour: a few bands at round numbers, bent where a few huge values would hide everything else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from unstuck.findings.surface import Array
from unstuck.surface.pictures.colours import DIVERGING, SEQUENTIAL, spread

BANDS = 15
TOO_WIDE = 6
"""The range is bent when it is this many times as wide as the middle half of the values."""
FAR = 6
"""Heights beyond this, some two hundred times the softness, share the outermost colour."""


@dataclass(frozen=True)
class Scale:
    """How the values of a panel, or of several, become heights and colours."""

    low: float
    high: float
    centre: float
    softness: float
    """Linear to about this far from the centre, logarithmic beyond; 0: linear throughout."""
    levels: tuple[float, ...]
    """Where colour changes: rising, all between low and high."""
    colours: tuple[str, ...]
    """One more than levels."""

    @property
    def edges(self) -> tuple[float, ...]:
        """The borders of the bands, the outer ones included."""
        return (self.low, *self.levels, self.high)

    def bend(self, values: Array) -> Array:
        """Heights at which equal distances look equal."""
        bent: Array = np.arcsinh((values - self.centre) / self.softness) if self.softness else values * 1.0
        return bent

    def unbend(self, heights: Array) -> Array:
        """The values at these heights."""
        values: Array = self.centre + self.softness * np.sinh(heights) if self.softness else heights * 1.0
        return values

    def ticks(self, count: int) -> list[float]:
        """About this many values to write along a bent axis, evenly spaced to the eye."""
        low, high = self.bend(np.array([self.low, self.high]))
        return _at_heights(np.linspace(low, high, count), self.centre, self.softness)


def sequential(values: Array) -> Scale:
    """A scale from the lowest to the highest of the finite values."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return _flat(math.nan, SEQUENTIAL)
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        return _flat(low, SEQUENTIAL)
    softness = _softness(finite, high - low)
    centre = float(np.median(finite)) if softness else 0.0
    levels = _bent_levels(low, high, centre, softness) if softness else _round_levels(low, high)
    return Scale(low, high, centre, softness, levels, spread(SEQUENTIAL, len(levels) + 1))


def diverging(values: Array) -> Scale:
    """A scale that is as far below zero as above it, with a neutral band around zero."""
    finite = values[np.isfinite(values)]
    high = float(np.abs(finite).max()) if finite.size else 0.0
    if high == 0:
        return _flat(0.0, DIVERGING)
    softness = _softness(np.concatenate([finite, -finite]), 2 * high)
    halves = np.arange(1, BANDS, 2) / BANDS
    if softness:
        above = _at_heights(min(math.asinh(high / softness), FAR) * halves, 0.0, softness)
    else:
        step = _round_step(2 * high / BANDS)
        above = [(index + 0.5) * step for index in range(len(halves))]
    above = [level for level in above if 0 < level < high]
    levels = (*(-level for level in reversed(above)), *above)
    return Scale(-high, high, 0.0, softness, levels, spread(DIVERGING, len(levels) + 1))


def _flat(value: float, anchors: tuple[str, ...]) -> Scale:
    return Scale(value, value, 0.0, 0.0, (), spread(anchors, 1))


def _softness(finite: Array, width: float) -> float:
    lower, upper = np.quantile(finite, [0.25, 0.75])
    middle = float(upper - lower)
    return middle if 0 < middle * TOO_WIDE < width else 0.0


def _round_levels(low: float, high: float) -> tuple[float, ...]:
    step = _round_step((high - low) / BANDS)
    first, last = math.ceil(low / step), math.floor(high / step)
    return tuple(index * step for index in range(first, last + 1) if low < index * step < high)


def _round_step(step: float) -> float:
    """The nearest 1, 2, 2.5 or 5 times a power of ten that is not smaller."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def _bent_levels(low: float, high: float, centre: float, softness: float) -> tuple[float, ...]:
    start, end = math.asinh((low - centre) / softness), math.asinh((high - centre) / softness)
    heights = np.linspace(max(start, -FAR), min(end, FAR), BANDS + 1)
    return tuple(level for level in _at_heights(heights, centre, softness) if low < level < high)


def _at_heights(heights: Array, centre: float, softness: float) -> list[float]:
    """The values there, with as few digits as distinguish them from their neighbours."""
    raw = centre + softness * np.sinh(heights)
    gaps = np.minimum(np.diff(raw, prepend=-np.inf), np.diff(raw, append=np.inf))
    digits = -np.floor(np.log10(gaps)).astype(int)
    return sorted({round(float(level), int(places)) for level, places in zip(raw, digits, strict=True)})
