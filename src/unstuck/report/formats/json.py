"""The JSON form of a result, described field by field in docs/json.md."""

from __future__ import annotations

from unstuck.findings.result import Result
from unstuck.report.json import document, encode


def render(result: Result) -> str:
    """The result as a JSON document."""
    return encode(document(result))
