"""The loss of a run, step by step, and what two of them say about each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from unstuck.record import Record

HEAD = 5
"""The start of a curve is the median of so many values."""


class Curve(msgspec.Struct, frozen=True):
    """Losses by step. A value that was not finite is None."""

    steps: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()

    @property
    def finite(self) -> list[float]:
        """The losses that are numbers."""
        return [value for value in self.losses if value is not None]

    @property
    def start(self) -> float | None:
        """Where it begins: the first value, which is that of the untrained model."""
        return self.finite[0] if self.finite else None

    @property
    def end(self) -> float | None:
        """Where it ends: the mean of the last tenth, at least five values; None if it ended non-finite."""
        if not self.losses or self.losses[-1] is None:
            return None
        tail = self.finite[-max(5, len(self.losses) // 10) :]
        return math.fsum(value / len(tail) for value in tail)  # the sum itself may be too large

    @property
    def is_broken(self) -> bool:
        """Did it end in NaN or infinity?"""
        return bool(self.losses) and self.losses[-1] is None

    def until(self, count: int) -> Curve:
        """Its first values."""
        return Curve(self.steps[:count], self.losses[:count])


def curve_of(record: Record) -> Curve:
    """The curve of a run on record. A record keeps no non-finite losses, only when they were."""
    from unstuck.events import Gauges, LossesBetween, NonFinite

    found: dict[int, float | None] = {}
    first = min((event.step for event in record.of(NonFinite)), default=None)
    for event in record.of(Gauges, LossesBetween):
        if isinstance(event, Gauges):
            if event.loss is not None or (first is not None and event.step >= first):
                found[event.step] = event.loss
        elif isinstance(event, LossesBetween):
            found.update(zip(event.steps, event.values, strict=True))
    ordered = sorted(found)
    return Curve(tuple(ordered), tuple(found[step] for step in ordered))


def curves_of(record: Record) -> dict[str, Curve]:
    """A curve for each optimizer by its name, if several have a loss of their own; else the one there is."""
    from unstuck.record.trainings import players

    found = {name: points for name, points in players(record).items() if points}
    if len(found) < 2:
        return {"loss": curve_of(record)}
    return {f"loss of {name}": Curve(*zip(*points, strict=True)) for name, points in found.items()}


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Medians of a window around each value."""
    half = window // 2
    return [_median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
