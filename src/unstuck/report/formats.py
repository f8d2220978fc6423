"""The formats a report can be written in: one module each, loaded when it is asked for."""

from __future__ import annotations

import importlib

from unstuck.findings.result import Result

TEXT = "text"
MODULES = {
    "concise": "concise",
    "json": "json",
    "json-lines": "json_lines",
    "sarif": "sarif",
    "github": "github",
    "junit": "junit",
}
"""Every format but `text`, and the module whose `render` writes it."""


def render(result: Result, wanted: str) -> str:
    """The report in the wanted format, as it goes into a file."""
    if wanted == TEXT:
        from unstuck.report import terminal, text

        return encodable(terminal.plain(text.render(result)))
    module = importlib.import_module(f"unstuck.report.{MODULES[wanted]}")
    return encodable(module.render(result))


def encodable(text: str) -> str:
    """The text without the halves of characters that a file name of another encoding leaves in it."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # halves that do not stand for a byte
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
