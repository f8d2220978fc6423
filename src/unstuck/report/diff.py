"""Edits as a unified diff."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unstuck.findings import Edit


def unified_diff(edits: Sequence[Edit]) -> str:
    """What the edits change in their files as they lie on disk; empty where they do not fit any more."""
    import difflib

    from unstuck.source import SourceError
    from unstuck.source.documents.document import open_document

    lines: list[str] = []
    for path in dict.fromkeys(edit.path for edit in edits):
        try:
            before = open_document(Path(path))
            after = before.edited([edit for edit in edits if edit.path == path])
            old, new = before.parts, after.parts
        except (SourceError, OSError, ValueError, IndexError):
            return ""
        for name in old:
            lines += difflib.unified_diff(old[name], new[name], name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
