"""One curve: the loss above, its gradient below, and what was found along them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from unstuck.findings.surface import Array, Region, Surface
from unstuck.surface.pictures.colours import DARK_INK, LIGHT_INK
from unstuck.surface.pictures.layout import Panel
from unstuck.surface.pictures.marks import (
    HATCH,
    HATCH_INK,
    HATCHED_GROUND,
    MARK,
    SMALL,
    STATIONARY,
    halo,
    label,
    number,
    percent,
    point,
    titled,
)
from unstuck.surface.pictures.scale import Scale

LOSS_INK = "#3b528b"
GRADIENT_INK = "#b35806"
DEAD_GROUND = "#e9e6f1"
DESIRED_GROUND = "#d9f0e3"
KINK_INK = "#55555f"
SMALLEST_LABELLED = 0.06


def draw(above: Axes, below: Axes, panel: Panel) -> None:
    """Draw a panel into two axes, one above the other."""
    surface = panel.surface
    (axis,) = surface.axes
    above.set(title=titled(panel.title), ylabel="difference" if panel.minus else "loss")
    below.set(xlabel=axis.name, ylabel="gradient")
    for axes, values, scale, ink in (
        (above, panel.values, panel.scale, LOSS_INK),
        (below, panel.gradient[0], panel.slopes, GRADIENT_INK),
    ):
        _line(axes, axis.points, values, scale, ink)
        _spans(axes, panel, words=axes is above)
        axes.set_xlim(axis.low, axis.high)
    if panel.minus is None:
        _points(above, below, surface)


def _line(axes: Axes, points: Array, values: Array, scale: Scale, ink: str) -> None:
    if scale.softness:
        axes.set_yscale("function", functions=(scale.bend, scale.unbend))
        ticks = scale.ticks(6)
        axes.set_yticks(ticks, [number(tick) for tick in ticks])
    if scale.high > scale.low:
        low, high = scale.bend(np.array([scale.low, scale.high]))
        margin = 0.06 * (high - low)
        axes.set_ylim(*scale.unbend(np.array([low - margin, high + margin])))
    axes.axhline(0, color="#9a9aa5", linewidth=0.8, zorder=1)
    axes.plot(points, np.where(np.isfinite(values), values, np.nan), color=ink, linewidth=2, zorder=3)
    axes.grid(color="#9a9aa5", alpha=0.25, linewidth=0.6)


def _spans(axes: Axes, panel: Panel, words: bool) -> None:
    surface = panel.surface
    for region in surface.non_finite:
        _span(axes, surface, region, facecolor=HATCHED_GROUND, edgecolor=HATCH_INK, hatch=HATCH, linewidth=0)
    if panel.minus is not None:
        return
    for region in surface.dead:
        _span(axes, surface, region, color=DEAD_GROUND)
        _word(axes, region, f"zero gradient, {percent(region.share)}" if words else "", height=0.97)
    if surface.desired is not None:
        _span(axes, surface, surface.desired, color=DESIRED_GROUND)
        _word(axes, surface.desired, "desired" if words else "", height=0.88)
    for region in surface.kinks:
        axes.axvline((region.low[0] + region.high[0]) / 2, color=KINK_INK, linestyle=":", linewidth=1, zorder=2)


def _span(axes: Axes, surface: Surface, region: Region, **style: object) -> None:
    half = surface.axes[0].span / (len(surface.axes[0].points) - 1) / 2
    axes.axvspan(region.low[0] - half, region.high[0] + half, zorder=0, **style)  # type: ignore[arg-type]


def _word(axes: Axes, region: Region, words: str, height: float) -> None:
    if words and region.share > SMALLEST_LABELLED:
        axes.text(
            (region.low[0] + region.high[0]) / 2, height, words, transform=axes.get_xaxis_transform(),
            fontsize=SMALL, ha="center", va="top", color="#3c3c46", zorder=4,
        )  # fmt: skip


def _points(above: Axes, below: Axes, surface: Surface) -> None:
    for spot in surface.stationary:
        above.plot(*spot.at, spot.value, **point(STATIONARY[spot.kind]), clip_on=False)  # type: ignore[arg-type]
    (axis,) = surface.axes
    for name, mark in surface.named_marks:
        for axes, values in ((above, surface.value), (below, surface.gradient[0])):
            height = float(np.interp(mark[0], axis.points, values))
            axes.plot(mark[0], height, **point(MARK), clip_on=False)  # type: ignore[arg-type]
            if name and axes is above:
                label(axes, name, (mark[0], height), DARK_INK, halo(2.6, LIGHT_INK))
