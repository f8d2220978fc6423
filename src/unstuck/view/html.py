"""The page as one file that needs nothing else, and as the frame that the live view fills."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from importlib.resources import files

from unstuck._version import __version__
from unstuck.findings.investigation import Investigation
from unstuck.record import Record
from unstuck.report import investigation
from unstuck.report.terminal import encodable, plain
from unstuck.view.document import Document, document, encoded

SCRIPTS = (
    "canvas.js",
    "parts.js",
    "pen.js",
    "state.js",
    "chart.js",
    "heat.js",
    "ridge.js",
    "sections.js",
    "layer.js",
    "live.js",
)
LAST = "page.js"
"""It uses all others."""


def page(done: Investigation, record: Record | None = None) -> str:
    """The whole page of a result. `record`: of the watched run, where it has been read already."""
    shown = document(done, record)
    return page_of(shown, plain(investigation.render(done)))


def page_of(shown: Document, text: str = "") -> str:
    """The whole page; `text` is for browsers that run no scripts."""
    program, sheet = script(), style()
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(sheet)}'; script-src '{_hash(program)}'"
    name = shown.run.script or shown.run.name or "training run"
    return _filled(
        {
            "policy": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            "title": html.escape(_visible(f"unstuck {shown.run.command} {name}")),
            "style": f"<style>{sheet}</style>",
            "script": f"<script>{program}</script>",
            "data": harmless(encoded(shown).decode()),
            "without": f"<pre>{html.escape(_visible(text))}</pre>" if text else "",
            "foot": html.escape(f"unstuck {__version__}. This page is complete in itself: it loads nothing."),
        }
    )


def live_page() -> str:
    """The frame of the live view. Its style and its script are files of the server."""
    return _filled(
        {
            "policy": "",
            "title": "unstuck",
            "style": '<link rel="stylesheet" href="page.css">',
            "script": '<script src="page.js"></script>',
            "data": "",
            "without": "<p>This page needs JavaScript. <code>unstuck view --terminal</code> does not.</p>",
            "foot": html.escape(f"unstuck {__version__}, on this machine only."),
        }
    )


@functools.cache
def script() -> str:
    """Everything that runs in the page."""
    parts = [_asset(name) for name in (*SCRIPTS, LAST)]
    return "\n".join([*parts, "begin();\n"])


@functools.cache
def style() -> str:
    """How the page looks."""
    return _asset("page.css")


def harmless(json: str) -> str:
    """The same JSON, without a character that could end its script element."""
    for character in "<>&\u2028\u2029":
        json = json.replace(character, f"\\u{ord(character):04x}")
    return json


def _filled(parts: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda gap: parts[gap[1]], _asset("page.html"))


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _visible(text: str) -> str:
    """Without the characters that no HTML may hold."""
    shown = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return encodable(shown)


def _asset(name: str) -> str:
    return (files(__package__) / "page" / name).read_text(encoding="utf-8")
