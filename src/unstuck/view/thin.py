"""Fewer numbers than were recorded, that still show what a person would see in all of them."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Sequence

import msgspec

DIGITS = 5
"""Significant digits of a number in the page; the record has them all."""
MISSING = 65535
"""A cell of a matrix that holds no number; 65534 is its largest."""

Number = float | None


def short(value: Number) -> Number:
    """The number with as many digits as anybody reads off a chart."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def thinned(steps: Sequence[int], values: Sequence[Number], most: int) -> tuple[list[int], list[Number]]:
    """At most `most` points, or all: of each stretch the lowest and the highest, so that no spike is lost. A stretch
    that holds a value which is not finite keeps one of those instead of its lowest."""
    if len(steps) <= most:
        return list(steps), [short(value) for value in values]
    stretches = max(1, (most - 2) // 2)
    chosen = {0, len(steps) - 1}
    for number in range(stretches):
        indices = range(number * len(steps) // stretches, (number + 1) * len(steps) // stretches)
        known = [index for index in indices if (value := values[index]) is not None and math.isfinite(value)]
        broken = len(known) < len(indices)
        if broken:
            chosen.add(next(index for index in indices if index not in set(known)))
        if known:
            chosen.add(max(known, key=lambda index: values[index] or 0.0))
            if not broken:
                chosen.add(min(known, key=lambda index: values[index] or 0.0))
    kept = sorted(chosen)
    return [steps[index] for index in kept], [short(values[index]) for index in kept]


def trend(steps: Sequence[int], values: Sequence[Number], most: int = 160) -> tuple[list[int], list[Number]]:
    """Medians of equal stretches, each at its middle; nothing of a line that is too short to have a noise."""
    known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    if len(known) < 40:
        return [], []
    stretches = min(most, len(known) // 8)
    places, medians = [], []
    for number in range(stretches):
        part = known[number * len(known) // stretches : (number + 1) * len(known) // stretches]
        places.append(part[len(part) // 2][0])
        medians.append(short(median([value for _, value in part])))
    return places, medians


def median(values: Sequence[float]) -> float:
    """The upper one of two."""
    return sorted(values)[len(values) // 2]


def columns(count: int, most: int) -> list[range]:
    """So many columns in at most `most` groups of neighbours."""
    groups = min(count, most)
    return [range(n * count // groups, (n + 1) * count // groups) for n in range(groups)]


class Matrix(msgspec.Struct, frozen=True):
    """Numbers by row and column in two bytes each: the share of the way from `low` to `high`, on a logarithmic scale
    if `log`."""

    rows: int
    columns: int
    low: float
    high: float
    log: bool
    cells: str
    """Little endian, in base64, row by row."""

    def row(self, number: int) -> list[Number]:
        """The numbers of one row again, as exact as two bytes are."""
        width = self.columns
        content = base64.b64decode(self.cells)[2 * width * number : 2 * width * (number + 1)]
        cells = [content[at] + 256 * content[at + 1] for at in range(0, len(content), 2)]
        shares = [None if cell == MISSING else cell / (MISSING - 1) for cell in cells]
        if not self.log:
            return [None if share is None else self.low + share * (self.high - self.low) for share in shares]
        return [None if share is None else self.low * (self.high / self.low) ** share for share in shares]


def packed(rows: Sequence[Sequence[Number]], *, log: bool) -> Matrix:
    """The rows, all of one length: positive numbers on a logarithmic scale, with 0 as the smallest that there is, or
    shares from 0 to 1."""
    known = [v for row in rows for v in row if v is not None and math.isfinite(v) and v > 0] if log else []
    low, high = (min(known), max(known)) if known else (1.0 if log else 0.0, 1.0)
    start, end = (math.log(low), math.log(high)) if log else (low, high)
    span = (end - start) or 1.0
    cells = array("H")
    for row in rows:
        for value in row:
            if value is None or not math.isfinite(value):
                cells.append(MISSING)
            elif log and value <= 0:
                cells.append(0)
            else:
                share = ((math.log(value) if log else value) - start) / span
                cells.append(round(min(1.0, max(0.0, share)) * (MISSING - 1)))  # a damaged record holds any number
    if cells.itemsize == 2 and array("H", [1]).tobytes()[0] != 1:
        cells.byteswap()
    width = len(rows[0]) if rows else 0
    return Matrix(len(rows), width, low, high, log, base64.b64encode(cells.tobytes()).decode())
