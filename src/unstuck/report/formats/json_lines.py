"""One JSON object per diagnosis and line, each as in the `diagnoses` of the JSON form (docs/json.md)."""

from __future__ import annotations

from unstuck.findings.result import Result
from unstuck.report.json import diagnosis_document, encode_line


def render(result: Result) -> str:
    """The lines; nothing at all when nothing was found."""
    return "".join(encode_line(diagnosis_document(item)) + "\n" for item in result.verdict.diagnoses)
