"""Findings in the words of the Language Server Protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
from lsprotocol import types
from pygls.workspace import PositionCodec

from unstuck.events import Place
from unstuck.findings import Edit, Severity
from unstuck.findings.result import Problem
from unstuck.integrations.here import Seen
from unstuck.lint.ignoring import comment_edit
from unstuck.report.help import markdown_of
from unstuck.rule import find_rule
from unstuck.source.documents.comments import line_ends

SOURCE = "unstuck"
SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.ADVICE: types.DiagnosticSeverity.Information,
}


class Files(Protocol):
    """The files of the user, as the editor has them or else as they lie on disk."""

    def lines_of(self, path: str) -> Sequence[str]:
        """Its lines; none if it cannot be read."""

    def uri_of(self, path: str) -> str:
        """Its address, spelled as the editor spells it."""


class Look(msgspec.Struct, frozen=True):
    """What was seen in one version of a document."""

    version: int | None
    text: str
    seen: tuple[Seen, ...] = ()
    """With a problem: what was seen before there was one."""
    problem: Problem | None = None

    def on_lines(self, first: int, last: int) -> list[Seen]:
        """What was found on these lines, counted from 0."""
        spans = [(seen, seen.place.line - 1, max(seen.place.end_line, seen.place.line) - 1) for seen in self.seen]
        return [seen for seen, start, end in spans if start <= last and first <= end]


class Answers:
    """Says what was found, in the units in which the client counts columns."""

    def __init__(self, codec: PositionCodec, files: Files) -> None:
        self._codec = codec
        self._files = files

    def diagnostic(self, seen: Seen) -> types.Diagnostic:
        """One finding."""
        lead = seen.diagnosis.lead
        others = [place for place in lead.places if place != seen.place]
        return types.Diagnostic(
            range=self.range(seen.place),
            severity=SEVERITIES[seen.diagnosis.severity],
            code=lead.id,
            source=SOURCE,
            message=f"{lead.name}: {seen.sentence}\n{lead.fix.text}",
            related_information=[self._related(place) for place in others],
        )

    def problem(self, problem: Problem) -> types.Diagnostic:
        """What could not be checked, such as a line that is not yet Python."""
        top = types.Position(0, 0)
        spot = self.range(problem.place) if problem.place else types.Range(top, top)
        severity = types.DiagnosticSeverity.Error
        return types.Diagnostic(range=spot, severity=severity, source=SOURCE, message=problem.message)

    def hover(self, found: Sequence[Seen]) -> types.Hover | None:
        """The pages of what was found on a line, each once."""
        pages = {seen.diagnosis.lead.code: page for seen in found if (page := _page(seen))}
        if not pages:
            return None
        content = types.MarkupContent(types.MarkupKind.Markdown, "\n\n---\n\n".join(pages.values()))
        return types.Hover(content, self.range(found[0].place))

    def actions(self, look: Look, found: Sequence[Seen]) -> Iterator[types.CodeAction]:
        """What can be done at once: fixes, the safe ones preferred, then a comment that silences the finding."""
        for seen in found:
            fix = seen.diagnosis.lead.fix
            if fix.edits:
                safe = fix.safety == "safe"
                yield self._action(_title(fix.text) + ("" if safe else " (look first)"), seen, fix.edits, safe)
        for seen in found:
            edit = _silencing(look.text, seen)
            if edit is not None:
                lead = seen.diagnosis.lead
                yield self._action(f"Ignore {lead.code} {lead.name} on this line", seen, (edit,))

    def _action(self, title: str, seen: Seen, edits: Sequence[Edit], preferred: bool = False) -> types.CodeAction:
        changes: dict[str, list[types.TextEdit]] = {}
        for edit in edits:
            spot = Place(edit.path, edit.line, edit.column, edit.end_line, edit.end_column)
            changes.setdefault(self._files.uri_of(edit.path), []).append(types.TextEdit(self.range(spot), edit.text))
        return types.CodeAction(
            title=title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[self.diagnostic(seen)],
            is_preferred=preferred or None,
            edit=types.WorkspaceEdit(changes=dict(changes)),
        )

    def _related(self, place: Place) -> types.DiagnosticRelatedInformation:
        lines = self._files.lines_of(place.path)
        quoted = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else "belongs to the same mistake"
        return types.DiagnosticRelatedInformation(
            types.Location(self._files.uri_of(place.path), self.range(place)), quoted
        )

    def range(self, place: Place) -> types.Range:
        """Where a place is; the whole line where its columns are not known."""
        lines = self._files.lines_of(place.path)
        line = lines[place.line - 1] if 0 < place.line <= len(lines) else ""
        first = place.column - 1 if place.column else len(line) - len(line.lstrip())
        known = place.end_line >= place.line and place.end_column
        last_line, last = (place.end_line, place.end_column - 1) if known else (place.line, len(line))
        return types.Range(self._position(lines, place.line, first), self._position(lines, last_line, last))

    def _position(self, lines: Sequence[str], line: int, character: int) -> types.Position:
        return self._codec.position_to_client_units(lines, types.Position(max(line - 1, 0), character))


def _title(text: str) -> str:
    """The first sentence, which says what to do; why is in the diagnostic."""
    return " ".join(text.split()).split(". ")[0].split("; ")[0].rstrip(".")


def _page(seen: Seen) -> str:
    lead = seen.diagnosis.lead
    rule = find_rule(lead.code)
    page = markdown_of(rule) if rule else f"# {lead.code} {lead.name}\n\n{lead.cause}"
    return f"**{seen.sentence}**\n\n{page}"


def _silencing(text: str, seen: Seen) -> Edit | None:
    """The comment goes on the guilty line, which must be in this file and able to carry a comment."""
    place, lead = seen.place, seen.diagnosis.lead
    if place != lead.place:
        return None
    lines, ends = text.split("\n"), line_ends(text)
    free = (line for line in (place.line, place.end_line) if 0 < line <= len(lines) and line not in ends.blocked)
    line = next(free, None)
    return comment_edit(place.path, lines[line - 1], ends, line, [lead.code]) if line else None
