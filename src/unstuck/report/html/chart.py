"""Curves as SVG, each with its numbers in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from unstuck.findings.curve import Curve, smoothed
from unstuck.report.html.markup import Html, tag

WIDTH, HEIGHT = 380, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 38
MOST_POINTS = 400
WIDE = 30.0
"""Losses are drawn on a logarithmic axis if the largest is so many times the smallest."""


class Series(msgspec.Struct, frozen=True):
    """One line of a chart."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]
    style: int = 0


class Mark(msgspec.Struct, frozen=True):
    """A place on the x axis, or a stretch of it."""

    label: str
    low: float
    high: float | None = None
    style: str = "own"


class Axis:
    """From numbers to pixels, along one direction."""

    def __init__(self, values: Sequence[float], start: float, end: float, logarithmic: bool) -> None:
        self.is_log = logarithmic and min(values) > 0
        low, high = self._bent(min(values)), self._bent(max(values))
        margin = 0.5 * (abs(low) or 1.0) if high == low else 0.0
        self._low, self._high = low - margin, high + margin
        self._start, self._end = start, end

    def _bent(self, value: float) -> float:
        return math.log10(value) if self.is_log else value

    def at(self, value: float) -> float:
        """The pixel of a number; those outside are put at the ends."""
        if self.is_log and value <= 0:
            return self._start
        share = (self._bent(value) - self._low) / (self._high - self._low)
        return round(self._start + min(1.0, max(0.0, share)) * (self._end - self._start), 1)

    def ticks(self) -> list[float]:
        """A handful of round numbers."""
        if self.is_log and self._high - self._low >= 1:
            first, last = math.ceil(self._low - 1e-9), math.floor(self._high + 1e-9)
            return [10.0**power for power in range(first, last + 1, 1 + (last - first) // 6)]
        low, high = (10**self._low, 10**self._high) if self.is_log else (self._low, self._high)
        step = _round_step((high - low) / 5)
        return [round(n * step, 12) for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(max(rough, 1e-300)))
    return next((size * step for step in (1, 2, 5) if size * step >= rough * 0.999), size * 10)


def of_curve(label: str, curve: Curve, style: int, xs: Sequence[float] = ()) -> Series:
    """A line of a chart, over steps or over the numbers given."""
    places = tuple(xs) if xs else tuple(float(step) for step in curve.steps)
    return Series(label, places, tuple(curve.losses[: len(places)]), style)


def chart(
    lines: Sequence[Series],
    title: str,
    *,
    x_label: str = "step",
    log_x: bool = False,
    marks: Sequence[Mark] = (),
    y_range: Sequence[float] = (),
    y_most: float = math.inf,
) -> Html:
    """The chart with its legend and its text alternative.

    `y_range`: numbers that the y axis must hold; `y_most`: where it ends if the values go on.
    """
    summary = "; ".join(in_words(line, x_label) for line in lines)
    heights = [y for line in lines for y in line.ys if y is not None] + list(y_range)
    heights = [min(height, max(y_most, min(heights))) for height in heights]
    places = [x for line in lines for x in line.xs[: len(line.ys)]]
    if not heights or not places:
        return tag("p", f"{title}: nothing to draw ({summary or 'no values'}).", class_="quiet")
    places += [x for mark in marks for x in (mark.low, mark.high) if x is not None and (x > 0 or not log_x)]
    x_axis = Axis(places, LEFT, WIDTH - RIGHT, log_x)
    y_axis = Axis(heights, HEIGHT - BOTTOM, TOP, min(heights) > 0 and max(heights) > WIDE * min(heights))
    drawing = tag(
        "svg",
        tag("title", title),
        tag("desc", f"{summary}. {'; '.join(_mark_words(mark) for mark in marks)}"),
        [_stretch(mark, x_axis) for mark in marks if mark.high is not None],
        _grid(x_axis, y_axis, x_label),
        [_upright(mark, x_axis) for mark in marks if mark.high is None],
        [_line(line, x_axis, y_axis) for line in lines],
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}. {summary}",
    )
    return tag(
        "figure", drawing, tag("figcaption", tag("strong", title), _legend(lines, marks, x_label)), class_="chart"
    )


def in_words(line: Series, x_label: str = "step") -> str:
    """`with: from 2.3 to 0.02 over 300 steps`."""
    finite = [y for y in line.ys if y is not None]
    if not finite:
        return f"{line.label}: no finite value"
    last = "not finite" if line.ys[-1] is None else f"{finite[-1]:.4g}"
    over = (
        f"over {len(line.ys)} {x_label}s"
        if x_label == "step"
        else f"for {x_label}s {line.xs[0]:.2g} to {line.xs[-1]:.2g}"
    )
    return f"{line.label}: from {finite[0]:.4g} to {last} {over}, lowest {min(finite):.4g}"


def _mark_words(mark: Mark) -> str:
    return f"{mark.label}: {mark.low:.3g}" + (f" to {mark.high:.3g}" if mark.high is not None else "")


def _grid(x_axis: Axis, y_axis: Axis, x_label: str) -> list[Html]:
    base, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts: list[Html] = []
    for value, word in _spelled(y_axis.ticks()):
        y = y_axis.at(value)
        parts.append(tag("line", x1=LEFT, x2=end, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", word, x=LEFT - 6, y=y + 4, text_anchor="end"))
    for value, word in _spelled(x_axis.ticks()):
        x = x_axis.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=base, y2=base + 4, class_="axis"))
        parts.append(tag("text", word, x=x, y=base + 17, text_anchor="middle"))
    parts.append(tag("line", x1=LEFT, x2=end, y1=base, y2=base, class_="axis"))
    logs = " (log)" if x_axis.is_log else ""
    parts.append(tag("text", x_label + logs, x=end, y=HEIGHT - 5, text_anchor="end", class_="label"))
    words = "loss (log)" if y_axis.is_log else "loss"
    return [*parts, tag("text", words, x=4, y=HEIGHT - 5, class_="label")]


def _spelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Each with as few digits as tell it from the others."""
    for digits in range(3, 9):
        words = [f"{value:.{digits}g}" for value in ticks]
        if len(set(words)) == len(words):
            break
    return list(zip(ticks, words, strict=True)) if ticks else []


def _line(line: Series, x_axis: Axis, y_axis: Axis) -> list[Html]:
    """The values in pale, their medians on top; a cross where they stop being finite."""
    points = [(x, y) for x, y in zip(line.xs, line.ys, strict=False) if y is not None]
    if not points:
        return []
    calm = smoothed([y for _, y in points], max(1, len(points) // 40) | 1)
    raw = _path(points, x_axis, y_axis)
    soft = _path([(x, y) for (x, _), y in zip(points, calm, strict=True)], x_axis, y_axis)
    parts = [tag("polyline", points=raw, class_=f"raw line-{line.style}")] if raw != soft else []
    parts.append(tag("polyline", points=soft, class_=f"line-{line.style}"))
    if len(points) == 1:
        parts.append(
            tag("circle", cx=x_axis.at(points[0][0]), cy=y_axis.at(points[0][1]), r=3, class_=f"line-{line.style}")
        )
    if line.ys and line.ys[-1] is None:
        x, y = x_axis.at(points[-1][0]), y_axis.at(points[-1][1])
        parts.append(tag("path", d=f"M{x - 5} {y - 5}l10 10m0 -10l-10 10", class_=f"line-{line.style}"))
        label_x, anchor = (x - 9, "end") if x > WIDTH / 2 else (x + 9, "start")
        parts.append(tag("text", "not finite", x=label_x, y=y + 4, class_="label", text_anchor=anchor))
    return parts


def _path(points: Sequence[tuple[float, float]], x_axis: Axis, y_axis: Axis) -> str:
    every = math.ceil(len(points) / MOST_POINTS)
    chosen = [*points[::every], *points[-1:]]
    return " ".join(f"{x_axis.at(x):g},{y_axis.at(y):g}" for x, y in chosen)


def _stretch(mark: Mark, x_axis: Axis) -> Html:
    assert mark.high is not None
    left, right = x_axis.at(mark.low), x_axis.at(mark.high)
    return tag(
        "rect", x=left, y=TOP, width=max(1.0, right - left), height=HEIGHT - BOTTOM - TOP, class_=f"mark {mark.style}"
    )


def _upright(mark: Mark, x_axis: Axis) -> list[Html]:
    x = x_axis.at(mark.low)
    right = x > WIDTH * 0.7
    word = tag("text", mark.label, x=x - 5 if right else x + 5, y=TOP + 10 + 14 * (mark.style != "own"), class_="label",
               text_anchor="end" if right else "start")  # fmt: skip
    return [tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_=f"mark {mark.style}"), word]


def _legend(lines: Sequence[Series], marks: Sequence[Mark], x_label: str) -> Html:
    keys = [tag("li", tag("span", class_=f"key line-{line.style}"), in_words(line, x_label)) for line in lines]
    keys += [tag("li", tag("span", class_=f"key mark {mark.style}"), _mark_words(mark)) for mark in marks]
    return tag("ul", keys, class_="legend")
