"""The report a person reads, as a file."""

from __future__ import annotations

from unstuck.findings.result import Result
from unstuck.report import terminal, text


def render(result: Result) -> str:
    """The text, without colours."""
    return terminal.plain(text.render(result))
