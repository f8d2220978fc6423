"""How things on a surface look in a file: symbols, lines and words that read on any ground."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import AbstractPathEffect, withStroke

from unstuck.findings.landmarks import PointKind
from unstuck.findings.surface import Array, Mask, Surface
from unstuck.surface.pictures.colours import DARK_INK, LIGHT_INK

HATCH = "/////"
HATCHED_GROUND = "#d9d9de"
HATCH_INK = "#6b6b76"
SMALL = 7.5


@dataclass(frozen=True)
class Look:
    """Marker and colours of one kind of point."""

    marker: str
    face: str
    edge: str
    size: float


STATIONARY = {
    PointKind.MINIMUM: Look("o", LIGHT_INK, DARK_INK, 6.5),
    PointKind.MAXIMUM: Look("^", LIGHT_INK, DARK_INK, 7.5),
    PointKind.SADDLE: Look("X", LIGHT_INK, DARK_INK, 8),
    PointKind.DEGENERATE: Look("D", "none", LIGHT_INK, 5.5),
}
HOLE = Look("s", HATCHED_GROUND, DARK_INK, 6)
"""A region that is not finite and too small for its hatching to be seen."""
MARK = Look("*", "#ff4f5e", LIGHT_INK, 12)


def halo(width: float, colour: str = DARK_INK) -> list[AbstractPathEffect]:
    """A rim that separates a line or a word from what is below it."""
    return [withStroke(linewidth=width, foreground=colour, alpha=0.75)]


def number(value: float) -> str:
    """Three digits and a true minus sign."""
    return f"{value:.3g}".replace("-", "−").replace("e+", "e")


def percent(share: float) -> str:
    """A share in words, never a misleading 0 %."""
    return "<1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def titled(name: str) -> str:
    """A name in lines that fit above a panel."""
    return textwrap.fill(name, 48)


def framed(cells: Mask, *points: Array) -> tuple[Array, list[Array]]:
    """The mask and its axes with the border repeated outside, so that outlines close along the edge."""
    return np.pad(cells.astype(np.float64), 1), [np.pad(axis, 1, mode="edge") for axis in points]


def point(look: Look) -> dict[str, object]:
    """Arguments of `plot` for a single symbol."""
    return {
        "linestyle": "none",
        "marker": look.marker,
        "markersize": look.size,
        "markerfacecolor": look.face,
        "markeredgecolor": look.edge,
        "markeredgewidth": 1.1,
        "path_effects": halo(2.4) if look.edge == LIGHT_INK else None,
        "zorder": 6,
    }


def label(axes: Axes, words: str, at: tuple[float, float], colour: str, path_effects: list[AbstractPathEffect]) -> None:
    """The name of a point, next to it and towards the middle of the picture."""
    low, high = axes.get_xlim()
    side = -1 if at[0] > (low + high) / 2 else 1
    axes.annotate(
        words, at, (9 * side, 5), textcoords="offset points", ha="left" if side > 0 else "right", color=colour,
        fontsize=SMALL, fontweight="bold", path_effects=path_effects, zorder=7,
    )  # fmt: skip


def legend_entries(surfaces: Sequence[Surface]) -> list[Artist]:
    """One entry for every kind of thing that is there to be seen and does not carry its own name."""
    kinds = {spot.kind for surface in surfaces for spot in surface.stationary}
    entries: list[Artist] = [_symbol(look, kind) for kind, look in STATIONARY.items() if kind in kinds]
    planes = [surface for surface in surfaces if surface.dimensions > 1]
    lines = [surface for surface in surfaces if surface.dimensions == 1]
    if any(surface.marks for surface in surfaces):
        entries.append(_symbol(MARK, "operating point"))
    if any(surface.flows for surface in planes):
        entries.append(Line2D([], [], color=LIGHT_INK, linewidth=1.4, path_effects=halo(2.8), label="descent"))
    if any(surface.dead for surface in planes):
        entries.append(Patch(facecolor="none", edgecolor=DARK_INK, linestyle=":", linewidth=1.4, label="zero gradient"))
    if any(surface.kinks for surface in lines):
        entries.append(Line2D([], [], color=DARK_INK, linestyle=":", linewidth=1, label="kink"))
    if any(surface.non_finite for surface in surfaces):
        entries.append(Patch(facecolor=HATCHED_GROUND, edgecolor=HATCH_INK, hatch=HATCH, label="not finite"))
    return entries


def _symbol(look: Look, label: str) -> Line2D:
    return Line2D([], [], label=label, **point(look))  # type: ignore[arg-type]
