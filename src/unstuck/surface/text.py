"""A surface in a terminal: a sketch in characters, the gradient-flow table, and what must be said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unstuck.findings.landmarks import PointKind
from unstuck.findings.surface import Array, FlowRow, Point, Surface
from unstuck.report.terminal import Line

SHADES = " .:-=+*#%@"
"""From low to high, one character for an equal part of the points each."""
COLUMNS, ROWS = 56, 16
CURVE_ROWS = 10
MOST_ROWS = 24
LETTERS = {PointKind.MINIMUM: "m", PointKind.MAXIMUM: "M", PointKind.SADDLE: "s", PointKind.DEGENERATE: "d"}


def render(surface: Surface) -> list[Line]:
    """What was looked at, a sketch of it, and the table; findings are the report's."""
    lines: list[Line] = [[(surface.name, "strong"), (_extent(surface), "")], []]
    if np.isfinite(surface.value).any():
        sketch = _plane(surface) if surface.dimensions == 2 else _curve(surface)
        lines += [[(f"  {row}", "")] for row in sketch]
        lines += [[(f"  {_legend(surface)}", "quiet")], []]
    lines += _table(surface.table)
    lines += [[("note  ", "label"), (note, "")] for note in surface.notes]
    return [*lines, *([[]] if surface.notes else [])]


def _extent(surface: Surface) -> str:
    grid = " x ".join(str(len(axis.points)) for axis in surface.axes)
    return f" over {surface.extent}: {grid} points, {surface.method}, {surface.lowest:.4g} to {surface.highest:.4g}"


def _plane(surface: Surface) -> list[str]:
    """The second axis upwards, the first to the right."""
    columns = np.linspace(0, surface.value.shape[0] - 1, COLUMNS).round().astype(int)
    rows = np.linspace(surface.value.shape[1] - 1, 0, ROWS).round().astype(int)
    shown = surface.value[np.ix_(columns, rows)].T
    ordered = np.sort(surface.value[np.isfinite(surface.value)])
    canvas = [[_shade(value, ordered) for value in row] for row in shown]
    for at, mark in _marks(surface):
        column, row = _cell(surface, at, 0, COLUMNS), ROWS - 1 - _cell(surface, at, 1, ROWS)
        if 0 <= column < COLUMNS and 0 <= row < ROWS:
            canvas[row][column] = mark
    first, second = surface.axes
    sides = {0: f"{second.high:.4g}", ROWS - 1: f"{second.low:.4g}", ROWS // 2: second.name}
    width = max(map(len, sides.values()))
    body = [f"{sides.get(index, ''):>{width}} |{''.join(row)}|" for index, row in enumerate(canvas)]
    return [*body, " " * width + "  " + _below(first.low, first.name, first.high)]


def _curve(surface: Surface) -> list[str]:
    picked = np.linspace(0, len(surface.value) - 1, COLUMNS).round().astype(int)
    values = surface.value[picked]
    low, high = surface.lowest, surface.highest
    canvas = [[" "] * COLUMNS for _ in range(CURVE_ROWS)]
    for column, value in enumerate(values):
        if not np.isfinite(value):
            canvas[CURVE_ROWS - 1][column] = "!"
            continue
        height = (value - low) / (high - low) if high > low else 0.0
        canvas[CURVE_ROWS - 1 - round(height * (CURVE_ROWS - 1))][column] = "*"
    sides = {0: f"{high:.4g}", CURVE_ROWS - 1: f"{low:.4g}"}
    width = max(map(len, sides.values()))
    body = [f"{sides.get(index, ''):>{width}} |{''.join(row)}|" for index, row in enumerate(canvas)]
    only = surface.axes[0]
    return [*body, " " * width + "  " + _below(only.low, only.name, only.high)]


def _below(low: float, name: str, high: float) -> str:
    left, right = f"{low:.4g}", f"{high:.4g}"
    return left + name.center(COLUMNS - len(left) - len(right)) + right


def _shade(value: float, ordered: Array) -> str:
    if not np.isfinite(value):
        return "!"
    rank = float(np.searchsorted(ordered, value)) / len(ordered)
    return SHADES[min(int(rank * len(SHADES)), len(SHADES) - 1)]


def _marks(surface: Surface) -> Iterator[tuple[Point, str]]:
    for point in surface.stationary:
        yield point.at, LETTERS[point.kind]
    for index, (name, mark) in enumerate(surface.named_marks, 1):
        yield mark, str(index) if name else "o"


def _cell(surface: Surface, at: Point, axis: int, count: int) -> int:
    line = surface.axes[axis]
    return round((at[axis] - line.low) / line.span * (count - 1))


def _legend(surface: Surface) -> str:
    words = {str(index): name for index, name in enumerate(surface.mark_names, 1)}
    words |= {letter: kind.value for kind, letter in LETTERS.items()} | {"o": "your point"}
    used = dict.fromkeys(mark for _, mark in _marks(surface)) if surface.dimensions == 2 else {}
    parts = [f"low '{SHADES[:3]}...{SHADES[-2:]}' high"] if surface.dimensions == 2 else []
    parts += [f"{mark} {words[mark]}" for mark in used]
    if not np.isfinite(surface.value).all():
        parts.append("! not finite")
    return ", ".join(parts)


def _table(rows: Sequence[FlowRow]) -> list[Line]:
    if not rows:
        return []
    header = ("component", "parameter", "input", "at", "loss", "gradient", "")
    body = [_cells(row) for row in rows[:MOST_ROWS]]
    widths = [max(len(cells[i]) for cells in (header, *body)) for i in range(len(header) - 1)]
    lines: list[Line] = [[(f"  {_aligned(header, widths)}", "quiet")]]
    for cells, row in zip(body, rows, strict=False):
        flag = f"<-- {row.flag}" if row.flag else ""
        lines.append([(f"  {_aligned(cells, widths)}  ", ""), (flag, "warning")])
    left_out = len(rows) - len(body)
    return [*lines, *([[(f"  and {left_out} more rows", "quiet")]] if left_out else []), []]


def _cells(row: FlowRow) -> tuple[str, ...]:
    at = f"({', '.join(f'{value:.4g}' for value in row.at)})"
    return (row.component, row.parameter, row.label, at, f"{row.loss:+.4g}", f"{row.gradient:+.4g}", "")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()
