"""`--add-ignores`: an ignore comment at the end of every line with a finding."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from unstuck.events import Place
from unstuck.findings import Diagnosis, Edit
from unstuck.findings.result import Problem
from unstuck.source import SourceError
from unstuck.source.documents.comments import LineEnds, line_ends
from unstuck.source.documents.document import Document, open_document, write_back


class Added(msgspec.Struct):
    """How many comments were added, and what prevented others."""

    comments: int = 0
    files: int = 0
    problems: list[Problem] = msgspec.field(default_factory=list)


def add_ignores(diagnoses: Iterable[Diagnosis]) -> Added:
    """Write an ignore comment for every diagnosis into the user's files, and report where that is not possible."""
    by_file: dict[str, list[Diagnosis]] = {}
    added = Added()
    for diagnosis in diagnoses:
        place = diagnosis.lead.place
        if place is None:
            added.problems.append(Problem(f"{diagnosis.lead.code} has no line to add a comment to."))
        else:
            by_file.setdefault(place.path, []).append(diagnosis)
    for path, found in by_file.items():
        try:
            _add_to(Path(path), found, added)
        except SourceError as error:
            added.problems.append(Problem(str(error), error.place))
    return added


def _add_to(path: Path, found: list[Diagnosis], added: Added) -> None:
    document = open_document(path)
    ends = line_ends(document.text)
    codes: dict[int, list[str]] = {}
    for diagnosis in found:
        line = _line_for(diagnosis.lead.place, document, ends)
        if line is None:
            why = "cannot add a comment, because the line ends inside a string or with a backslash"
            added.problems.append(Problem(f"{diagnosis.lead.code}: {why}; use per-file-ignores.", diagnosis.lead.place))
        elif diagnosis.lead.code not in codes.setdefault(line, []):
            codes[line].append(diagnosis.lead.code)
    texts = {line: document.rows[line - 1].text for line in codes}
    edits = [comment_edit(document.name, texts[line], ends, line, words) for line, words in codes.items()]
    if edits:
        write_back(path, document.raw, document.edited(edits).raw)
        added.files += 1
        added.comments += sum(map(len, codes.values()))


def _line_for(place: Place | None, document: Document, ends: LineEnds) -> int | None:
    """The first or the last line of the place, as a line of the whole document."""
    if place is None:
        return None
    rows = [number for number, row in enumerate(document.rows, 1) if row.cell == place.cell]
    lines = [rows[line - 1] for line in (place.line, place.end_line) if 0 < line <= len(rows)]
    return next((line for line in lines if line not in ends.blocked), None)


def comment_edit(name: str, text: str, ends: LineEnds, line: int, codes: list[str]) -> Edit:
    """Adds the codes in a comment at the end of a line with this text, or to its existing comment."""
    comment = ends.ignores.get(line)
    if comment is None:
        end = len(text.rstrip()) + 1
        return Edit(name, line, end, line, len(text) + 1, f"  # unstuck: ignore[{', '.join(codes)}]")
    words = ", ".join(dict.fromkeys([*(comment.words or ()), *codes]))
    return Edit(name, line, comment.column, line, comment.end_column, f"# unstuck: ignore[{words}]")
