"""Surfaces as a PNG or SVG image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure, SubFigure

from unstuck.findings.surface import Surface
from unstuck.surface.pictures import curve, plane
from unstuck.surface.pictures.layout import Panel, arrow_range, panels
from unstuck.surface.pictures.marks import legend_entries, number

PER_ROW = 3
DOTS_PER_INCH = 120
SETTINGS: Any = {
    "text.parse_math": False,  # a name may hold a dollar sign
    "svg.hashsalt": "unstuck",  # the same surface gives the same file
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def image(surfaces: Sequence[Surface], kind: str) -> bytes:
    """The content of a `png` or `svg` file."""
    with matplotlib.rc_context(SETTINGS):
        content = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure(surfaces).savefig(content, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return content.getvalue()


def figure(surfaces: Sequence[Surface]) -> Figure:
    """All panels and one legend. A panel has two axes: map and colour bar, or loss and gradient."""
    shown = panels(surfaces)
    columns = min(PER_ROW, len(shown))
    rows = -(-len(shown) // columns)
    sheet = Figure(figsize=(5.8 * columns, 0.4 + 4.7 * rows), layout="constrained")
    parts = sheet.subfigures(rows, columns, squeeze=False).ravel()
    arrows = arrow_range(shown)
    for panel, part in zip(shown, parts, strict=False):
        if panel.surface.dimensions == 1:
            above, below = part.subplots(2, 1, sharex=True, height_ratios=[3, 2])
            curve.draw(above, below, panel)
        else:
            axes = part.subplots()
            _colour_bar(part, axes, plane.draw(axes, panel, arrows), panel)
    _legend(sheet, [panel.surface for panel in shown], 4 * columns)
    return sheet


def _colour_bar(part: SubFigure, axes: Axes, filled: QuadContourSet, panel: Panel) -> None:
    ticks = panel.scale.levels[1::2] or (panel.scale.low,)
    # Equal bands, whatever their width in the loss: a bent scale stays readable at its crowded end.
    bar = part.colorbar(filled, ax=axes, spacing="uniform", aspect=28, pad=0.02)
    bar.set_ticks(ticks, labels=[number(tick) for tick in ticks])
    bar.set_label("difference" if panel.minus else "loss")
    bar.outline.set_visible(False)


def _legend(sheet: Figure, surfaces: Sequence[Surface], columns: int) -> None:
    entries = legend_entries(surfaces)
    if entries:
        sheet.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), columns), frameon=False)
