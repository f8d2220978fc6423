"""One map: filled contours, the field of descent, and what was found on them."""

from __future__ import annotations

import math
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from numpy.typing import NDArray

from unstuck.findings.surface import Array, FlowLine, Region, Surface
from unstuck.surface.pictures.colours import DARK_INK, LIGHT_INK, ink_on
from unstuck.surface.pictures.layout import Panel
from unstuck.surface.pictures.marks import (
    HATCH,
    HATCH_INK,
    HATCHED_GROUND,
    HOLE,
    MARK,
    SMALL,
    STATIONARY,
    framed,
    halo,
    label,
    percent,
    point,
    titled,
)
from unstuck.surface.pictures.scale import Scale

ARROWS = 19
"""Arrows along each side."""
SMALLEST_SEEN = 0.002
"""Regions with a smaller share of the plane are marked by a symbol; they may fall between the points of the grid."""
SMALLEST_LABELLED = 0.02
"""Regions with a smaller share of the plane carry no words."""
ROUND_THE_MIDDLE = 0.15
"""Nor do those whose nearest point is this part of the plane away from their middle."""


def draw(axes: Axes, panel: Panel, arrows: tuple[float, float]) -> QuadContourSet:
    """Draw a panel; what it returns is what a colour bar needs."""
    surface = panel.surface
    across, up = surface.axes
    axes.set(title=titled(panel.title), xlabel=across.name, ylabel=up.name)
    axes.set(xlim=(across.low, across.high), ylim=(up.low, up.high), facecolor=HATCHED_GROUND)
    filled = _heights(axes, panel)
    _hatch(axes, surface, panel.minus)
    if panel.minus is None:
        _arrows(axes, panel, arrows)
        _regions(axes, surface)
        for flow in surface.flows:
            _flow(axes, flow)
        _points(axes, surface)
    return filled


def _heights(axes: Axes, panel: Panel) -> QuadContourSet:
    across, up = panel.surface.axes
    scale = panel.scale
    shown = np.ma.masked_invalid(panel.values).T
    filled = axes.contourf(across.points, up.points, shown, levels=_closed(scale), colors=scale.colours)
    if scale.levels:
        styles = ["dashed" if panel.minus and level < 0 else "solid" for level in scale.levels]
        inks = [ink_on(colour) for colour in scale.colours[1:]]
        axes.contour(
            across.points, up.points, shown, scale.levels, colors=inks, linestyles=styles, linewidths=0.6, alpha=0.45
        )
    return filled


def _closed(scale: Scale) -> list[float]:
    """Edges a little outside the values, so that the extreme ones are filled too."""
    low, *levels, high = (0.0 if math.isnan(edge) else edge for edge in scale.edges)
    margin = 1e-6 * (high - low) or 1e-6 * max(1.0, abs(low))
    return [low - margin, *levels, high + margin]


def _hatch(axes: Axes, surface: Surface, minus: Surface | None) -> None:
    for region in surface.non_finite + (minus.non_finite if minus else ()):
        if region.share < SMALLEST_SEEN:
            spot = [(low + high) / 2 for low, high in zip(region.low, region.high, strict=True)]
            axes.plot(*spot, **point(HOLE), clip_on=False)  # type: ignore[arg-type]
            continue
        cells, (across, up) = framed(region.cells, *(axis.points for axis in surface.axes))
        hatched = axes.contourf(across, up, cells.T, [0.5, 1.5], colors=[HATCHED_GROUND], hatches=[HATCH])
        hatched.set_edgecolor(HATCH_INK)
        hatched.set_linewidth(0)
        _word(axes, surface, region, textwrap.fill(region.label, 14))


def _arrows(axes: Axes, panel: Panel, limits: tuple[float, float]) -> None:
    """Against the gradient; the length grows with its logarithm, a dot means a zero gradient."""
    surface = panel.surface
    rows, columns = (_even_picks(len(axis.points)) for axis in surface.axes)
    grid = np.ix_(rows, columns)
    slope = np.stack([part[grid] for part in surface.gradient])
    steepness, values = surface.steepness[grid], surface.value[grid]
    x, y = np.meshgrid(surface.axes[0].points[rows], surface.axes[1].points[columns], indexing="ij")
    inks = np.array([ink_on(colour) for colour in panel.scale.colours])
    ink = inks[np.searchsorted(panel.scale.levels, np.nan_to_num(values))]
    moving = np.isfinite(steepness) & (steepness > 0) & np.isfinite(values)
    flat = np.isfinite(values) & (steepness == 0)
    axes.scatter(x[flat], y[flat], s=1.6, c=ink[flat], alpha=0.75, linewidths=0, zorder=3)
    direction = -slope[:, moving] / steepness[moving] * _lengths(steepness[moving], limits)
    # `xy` keeps the direction true when the axes have different units; the length is in parts of the width.
    axes.quiver(
        x[moving], y[moving], *direction, color=ink[moving], alpha=0.8, zorder=3, pivot="mid",
        angles="xy", scale_units="width", scale=ARROWS * 1.05, width=0.0032, headwidth=4.2, headlength=4.5,
    )  # fmt: skip


def _even_picks(count: int) -> NDArray[np.intp]:
    """Indices of points to put arrows at: spread evenly, away from the border."""
    wanted = min(ARROWS, count)
    return np.unique(((np.arange(wanted) + 0.5) * count / wanted).astype(np.intp))


def _lengths(steepness: Array, limits: tuple[float, float]) -> Array:
    shortest, longest = (math.log10(limit) for limit in limits)
    place = (np.log10(steepness) - shortest) / (longest - shortest or 1.0)
    lengths: Array = 0.25 + 0.75 * np.clip(place, 0, 1)
    return lengths


def _regions(axes: Axes, surface: Surface) -> None:
    for region in surface.dead:
        _outline(axes, surface, region, linestyle="dotted", width=1.5)
        _word(axes, surface, region, f"zero gradient\n{percent(region.share)}")
    if surface.desired is not None:
        _outline(axes, surface, surface.desired, linestyle="solid", width=1.6)
        _word(axes, surface, surface.desired, "desired")


def _outline(axes: Axes, surface: Surface, region: Region, linestyle: str, width: float) -> None:
    cells, (across, up) = framed(region.cells, *(axis.points for axis in surface.axes))
    for colour, wide in ((DARK_INK, width + 1.8), (LIGHT_INK, width)):
        axes.contour(
            across, up, cells.T, [0.5], colors=[colour], linewidths=wide,
            linestyles=linestyle if colour == LIGHT_INK else "solid", zorder=4,
        )  # fmt: skip


def _word(axes: Axes, surface: Surface, region: Region, words: str) -> None:
    spot = _middle(surface, region)
    if region.share < SMALLEST_LABELLED or spot is None:
        return
    place = (spot[0] - surface.axes[0].low) / surface.axes[0].span
    side = "left" if place < 0.09 else "right" if place > 0.91 else "center"
    axes.text(
        *spot, words, color=LIGHT_INK, fontsize=SMALL, fontweight="bold", ha=side, va="center",
        path_effects=halo(2.6), zorder=7, clip_on=True,
    )  # fmt: skip


def _middle(surface: Surface, region: Region) -> tuple[float, float] | None:
    """The point of a region nearest to its middle; None for a region that goes around its middle, as a border does."""
    places = np.argwhere(region.cells) / region.cells.shape
    distances = np.linalg.norm(places - places.mean(axis=0), axis=1) if len(places) else np.array([np.inf])
    if distances.min() > ROUND_THE_MIDDLE:
        return None
    row, column = np.argwhere(region.cells)[distances.argmin()]
    across, up = surface.axes
    return float(across.points[row]), float(up.points[column])


def _flow(axes: Axes, flow: FlowLine) -> None:
    x, y = flow.points.T
    axes.plot(x, y, color=LIGHT_INK, linewidth=1.3, path_effects=halo(2.6), zorder=5, solid_capstyle="round")
    axes.plot(x[:1], y[:1], "o", color=LIGHT_INK, markersize=2.8, path_effects=halo(2.2), zorder=5)


def _points(axes: Axes, surface: Surface) -> None:
    for spot in surface.stationary:
        axes.plot(*spot.at, **point(STATIONARY[spot.kind]), clip_on=False)  # type: ignore[arg-type]
    for name, mark in surface.named_marks:
        axes.plot(*mark, **point(MARK), clip_on=False)  # type: ignore[arg-type]
        if name:
            label(axes, name, (mark[0], mark[1]), LIGHT_INK, halo(2.6))
