"""Curves in characters: braille dots, or letters where the stream has no others."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from unstuck.findings.curve import smoothed
from unstuck.findings.results import NamedCurve
from unstuck.report.terminal import Line, Span

HEIGHT = 8
"""Lines of the plot itself."""
NARROWEST = 10
"""Columns below which there is no plot."""
LOGARITHMIC = 30.0
"""Losses are drawn on a logarithmic axis if the highest is so many times the lowest."""
MANY = 60
"""Values per curve from which on they are smoothed."""
STYLES = ("mark", "command", "label", "other")
LETTERS = "*o+x"
BRAILLE = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a cell, by column and row."""

Point = tuple[float, float]


class _Axis(NamedTuple):
    """From values to 0..1."""

    lowest: float
    highest: float
    logarithmic: bool

    def share(self, value: float) -> float:
        """Where a value lies between the ends."""
        low, high, at = (math.log(v) if self.logarithmic else v for v in (self.lowest, self.highest, value))
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5


def plot(
    curves: Sequence[NamedCurve],
    width: int,
    xs: Sequence[float] = (),
    x_axis: str = "step",
    plain: bool | None = None,
) -> list[Line]:
    """Draw curves into so many columns, each named where it ends; over their steps, or over `xs` on a logarithmic axis.

    `plain`: in ASCII; None: if stdout has no braille. Nothing is drawn without values, or where it is too narrow.
    """
    points = [_points(named, xs) for named in curves]
    values = [y for line in points for _, y in line]
    plain = not _has_braille() if plain is None else plain
    labels = [_label(named, LETTERS[i % len(LETTERS)] if plain else "") for i, named in enumerate(curves)]
    margin = max((len(label) for label in labels), default=0) + 1
    if not values:
        return []
    x, y = _x_axis(points, bool(xs)), _y_axis(values)
    ticks = _ticks(y)
    left = max(len(tick) for tick in ticks)
    columns = width - left - 2 - margin
    if columns < NARROWEST:
        return []
    canvas = _Canvas(columns, plain)
    ends = [canvas.draw(index, line, x, y) for index, line in enumerate(points)]
    labels_by_row = _labels_at(ends, labels)
    lines = [
        [(f"{ticks[row]:>{left}} ", "quiet"), *canvas.row(row), *labels_by_row.get(row, [])] for row in range(HEIGHT)
    ]
    return [*lines, [(" " * (left + 1) + _foot(x, x_axis, columns), "quiet")]]


def _has_braille() -> bool:
    try:
        chr(BRAILLE).encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _points(named: NamedCurve, xs: Sequence[float]) -> list[Point]:
    places = xs or [float(step) for step in named.curve.steps]
    pairs = zip(places, named.curve.losses, strict=False)
    found = [(x, y) for x, y in pairs if y is not None and math.isfinite(y) and (not xs or x > 0)]
    # Of more values than there are dots, what their noise hides is the curve.
    window = 1 + 2 * (len(found) // MANY)
    return list(zip((x for x, _ in found), smoothed([y for _, y in found], window), strict=True))


def _label(named: NamedCurve, letter: str) -> str:
    last = named.curve.end
    end = f"{last:.3g}" if last is not None and math.isfinite(last) else "not finite"
    return " ".join(part for part in (letter, named.label, end) if part)


def _x_axis(points: Sequence[Sequence[Point]], logarithmic: bool) -> _Axis:
    places = [x for line in points for x, _ in line]
    return _Axis(min(places), max(places), logarithmic)


def _y_axis(values: Sequence[float]) -> _Axis:
    lowest, highest = min(values), max(values)
    return _Axis(lowest, highest, lowest > 0 and highest > LOGARITHMIC * lowest)


def _ticks(y: _Axis) -> list[str]:
    middle = math.sqrt(y.lowest * y.highest) if y.logarithmic else (y.lowest + y.highest) / 2
    ticks = [""] * HEIGHT
    if y.highest > y.lowest:
        ticks[0], ticks[-1] = f"{y.highest:.3g}", f"{y.lowest:.3g}"
    ticks[HEIGHT // 2] = f"{middle:.3g}"
    return ticks


def _foot(x: _Axis, name: str, columns: int) -> str:
    """`0        step        200`"""
    first, last = f"{x.lowest:.3g}", f"{x.highest:.3g}"
    middle = name.center(max(0, columns - len(first) - len(last)))
    return f"{first}{middle}{last}"


def _labels_at(ends: Sequence[int], labels: Sequence[str]) -> dict[int, list[Span]]:
    """Each label in the line where its curve ends, or in the nearest one that is free."""
    found: dict[int, list[Span]] = {}
    for index, (end, label) in enumerate(zip(ends, labels, strict=True)):
        free = [row for row in range(HEIGHT) if row not in found]
        if free:
            row = min(free, key=lambda row: abs(row - end))
            found[row] = [(f" {label}", STYLES[index % len(STYLES)])]
    return found


class _Canvas:
    """Cells of 2 x 4 dots, or of one letter."""

    def __init__(self, columns: int, plain: bool) -> None:
        self._plain = plain
        self._wide, self._high = (1, 1) if plain else (2, 4)
        self._columns = columns
        self._cells = [[0] * columns for _ in range(HEIGHT)]
        self._owners = [[-1] * columns for _ in range(HEIGHT)]

    def draw(self, index: int, line: Sequence[Point], x: _Axis, y: _Axis) -> int:
        """Draw one curve; the row it ends in."""
        width, height = self._columns * self._wide, HEIGHT * self._high
        heights: dict[int, list[float]] = {}
        for place, value in line:
            heights.setdefault(round(x.share(place) * (width - 1)), []).append(y.share(value))
        before: tuple[int, int] | None = None
        for column, shares in sorted(heights.items()):
            here = column, round((1 - math.fsum(shares) / len(shares)) * (height - 1))
            for dot in _between(before or here, here):
                self._set(index, *dot)
            before = here
        return before[1] // self._high if before else 0

    def _set(self, index: int, column: int, row: int) -> None:
        cell = row // self._high, column // self._wide
        self._cells[cell[0]][cell[1]] |= DOTS[column % self._wide][row % self._high]
        self._owners[cell[0]][cell[1]] = index

    def row(self, number: int) -> list[Span]:
        """One line, in runs of one style."""
        spans: list[Span] = []
        for bits, owner in zip(self._cells[number], self._owners[number], strict=True):
            style = STYLES[owner % len(STYLES)] if owner >= 0 else ""
            drawn = LETTERS[owner % len(LETTERS)] if self._plain else chr(BRAILLE + bits)
            text = drawn if owner >= 0 else " "
            if spans and spans[-1][1] == style:
                spans[-1] = spans[-1][0] + text, style
            else:
                spans.append((text, style))
        return spans


def _between(one: tuple[int, int], other: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line."""
    length = max(abs(other[0] - one[0]), abs(other[1] - one[1]), 1)
    return [
        (round(one[0] + (other[0] - one[0]) * i / length), round(one[1] + (other[1] - one[1]) * i / length))
        for i in range(length + 1)
    ]
