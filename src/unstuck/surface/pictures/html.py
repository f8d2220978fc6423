"""Surfaces as one page that needs nothing else: no network, no other file, no library."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.resources import files

from unstuck.findings.surface import Surface
from unstuck.surface.pictures.data import document
from unstuck.view.html import harmless

SCRIPTS = ("field.js", "ink.js", "plane.js", "curve.js", "notes.js", "page.js")


def page(surfaces: Sequence[Surface]) -> str:
    """The whole page."""
    parts = {
        "title": html.escape(" and ".join(surface.name for surface in surfaces)),
        "style": _asset("page.css"),
        "data": harmless(document(surfaces).decode()),
        "script": "\n".join([_asset("canvas.js", "unstuck.view"), *(_asset(name) for name in SCRIPTS)]),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda gap: parts[gap[1]], _asset("page.html"))


def _asset(name: str, package: str = __package__) -> str:
    return (files(package) / "page" / name).read_text(encoding="utf-8")
