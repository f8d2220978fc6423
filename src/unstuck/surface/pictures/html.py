"""Surfaces as one page that needs nothing else: no network, no other file, no library."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.resources import files

from unstuck.findings.surface import Surface
from unstuck.surface.pictures.data import document

SCRIPTS = ("field.js", "ink.js", "plane.js", "curve.js", "notes.js", "page.js")


def page(surfaces: Sequence[Surface]) -> str:
    """The whole page."""
    parts = {
        "title": html.escape(" and ".join(surface.name for surface in surfaces)),
        "style": _asset("page.css"),
        "data": harmless(document(surfaces).decode()),
        "script": "\n".join(_asset(name) for name in SCRIPTS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda gap: parts[gap[1]], _asset("page.html"))


def harmless(json: str) -> str:
    """The same JSON, without a character that could end its script element."""
    for character in "<>&\u2028\u2029":
        json = json.replace(character, f"\\u{ord(character):04x}")
    return json


def _asset(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")
