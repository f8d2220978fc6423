"""Surfaces as pictures people look at: PNG and SVG files, or one interactive page."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from unstuck.findings.surface import Surface

SUFFIXES = (".html", ".png", ".svg")


class PlotsMissing(Exception):
    """A picture was asked for that needs matplotlib, which is not installed."""


def write(surfaces: Sequence[Surface], path: Path) -> None:
    """Draw the surfaces side by side into a file whose suffix says how; the file is complete or not there."""
    path = Path(path)
    if not surfaces:
        raise ValueError("There is no surface to draw.")
    _replace(path, _painter(path)(surfaces))


def _painter(path: Path) -> Callable[[Sequence[Surface]], bytes]:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"A picture of a surface ends in .html, .png or .svg, and {path.name} does not.")
    if suffix == ".html":
        from unstuck.surface.pictures.html import page

        return lambda surfaces: page(surfaces).encode()
    try:
        from unstuck.surface.pictures.chart import image
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise PlotsMissing(
            f"Drawing {path.name} needs matplotlib: pip install 'unstuck[plots]', or write an .html page."
        ) from error
    return lambda surfaces: image(surfaces, suffix.removeprefix("."))


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
