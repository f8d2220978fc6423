"""Applying the edits of findings: only where the file then parses, no longer raises them and raises no others.

Edits of one finding are applied together. Of two findings whose edits touch, the first goes first and the other is
looked at again in the changed text. What was refused or could not be written is said and changes nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from unstuck.findings import Edit, Finding, Severity
from unstuck.lint.engine import as_set
from unstuck.lint.outcome import verdict_of
from unstuck.lint.settings import Settings
from unstuck.report.result import Problem, Result
from unstuck.source import Project
from unstuck.source.documents.document import Document, open_document, write_back
from unstuck.source.documents.files import SourceError

Find = Callable[[Document], Sequence[Finding]]
"""What the rules find in a file as it would be, with places in its `text`; raises SourceError if it does not parse."""

SAFE = frozenset({"safe"})
ALL = frozenset({"safe", "unsafe"})
MOST_ROUNDS = 200


def fix_all(result: Result, settings: Settings, allowed: frozenset[str]) -> tuple[list[Fixed], list[Problem]]:
    """Fix every file that a result has edits for; nothing is written. Files that changed meanwhile are problems."""
    leads = [diagnosis.lead for diagnosis in result.verdict.diagnoses]
    named = (edit.path for lead in leads if lead.fix.safety in allowed for edit in lead.fix.edits)
    paths = {os.path.realpath(path): Path(path) for path in named}
    fixed, problems = [], []
    for path in paths.values():
        try:
            fixed.append(fix_file(path, finder(path, settings), allowed))
        except SourceError as error:
            problems.append(Problem(str(error), error.place))
    return fixed, problems


def finder(path: Path, settings: Settings) -> Find:
    """Asks the rules of the settings about a file as it would be."""

    def find(document: Document) -> list[Finding]:
        # What it imports is read anew, since that may have been fixed a moment ago.
        verdict = verdict_of(path, document.text, settings.rules, Project())
        return [diagnosis.lead for diagnosis in as_set(verdict, settings).diagnoses]

    return find


class Fixed(msgspec.Struct, eq=False):
    """What fixing one file came to."""

    path: Path
    before: Document
    after: Document
    applied: tuple[Finding, ...] = ()
    fixed: int = 0
    """How many findings are gone, which is more than `applied` where one edit cured several."""
    refused: tuple[Finding, ...] = ()
    """Findings whose edits were not made, since the file would not parse, would still raise them or raise others."""

    @property
    def is_changed(self) -> bool:
        """Is there anything to write?"""
        return bool(self.applied)


def fix_file(path: Path, find: Find, allowed: frozenset[str]) -> Fixed:
    """Apply every fix of the allowed safety that does what it says. Nothing is written: see `write`."""
    return fix_document(path, open_document(path), find, allowed)


def fix_document(path: Path, document: Document, find: Find, allowed: frozenset[str]) -> Fixed:
    """`fix_file` for a text that need not lie on disk."""
    fixing = _Fixing(document, find, allowed)
    fixing.run()
    gone = max(len(fixing.applied), fixing.at_first - len(fixing.findings))
    refused = tuple(finding for finding in fixing.findings if _key(finding, fixing.document) in fixing.refused)
    return Fixed(path, document, fixing.document, tuple(fixing.applied), gone, refused)


def write(fixed: Fixed) -> None:
    """Put a fixed file where the old one lay, or raise a SourceError that says why it stays as it is."""
    if fixed.is_changed:
        write_back(fixed.path, fixed.before.raw, fixed.after.raw)


def diff(fixed: Fixed) -> str:
    """The change as a unified diff, for a notebook one of each changed cell."""
    import difflib

    old, new = fixed.before.parts, fixed.after.parts
    lines = [line for name in old for line in difflib.unified_diff(old[name], new[name], name, name)]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class _Fixing:
    """One file on its way to a fixed point."""

    def __init__(self, document: Document, find: Find, allowed: frozenset[str]) -> None:
        self.document = document
        self.applied: list[Finding] = []
        self.refused: set[object] = set()
        self._find = find
        self._allowed = allowed
        self.findings = list(find(document))
        self.at_first = len(self.findings)

    def run(self) -> None:
        for _ in range(MOST_ROUNDS):
            waiting = [finding for finding in self.findings if self._may_fix(finding)]
            if not waiting:
                return
            together = _apart(waiting)
            if not self._try(together) and not self._try(together[:1]):
                self.refused.add(_key(together[0], self.document))

    def _may_fix(self, finding: Finding) -> bool:
        fix = finding.fix
        wanted = bool(fix.edits) and fix.safety in self._allowed
        return wanted and self._is_here(fix.edits) and _key(finding, self.document) not in self.refused

    def _is_here(self, edits: Sequence[Edit]) -> bool:
        return all(edit.path == self.document.name for edit in edits)

    def _try(self, chosen: Sequence[Finding]) -> bool:
        """Make the edits of the chosen findings, if the result parses, lacks them, and has no new ones."""
        try:
            changed = self.document.edited([edit for finding in chosen for edit in finding.fix.edits])
            found = list(self._find(changed))
            _ = changed.raw
        except (SourceError, UnicodeError):
            return False
        before, after = Counter(map(_matter, self.findings)), Counter(map(_matter, found))
        before.subtract(map(_matter, chosen))
        if any(amount > before[matter] for matter, amount in after.items() if matter[1] or matter in before):
            return False
        self.document, self.findings = changed, found
        self.applied += chosen
        return True


def _matter(finding: Finding) -> tuple[str, bool]:
    """What is counted before and after a fix; advice may appear where something worse was."""
    return finding.code, finding.severity.at_least(Severity.WARNING)


def _key(finding: Finding, document: Document) -> object:
    """What tells a finding from others of its rule while lines move."""
    line = finding.place.line if finding.place else 0
    text = document.rows[line - 1].text if 0 < line <= len(document.rows) else ""
    return finding.id, finding.subject.key, text, tuple(edit.text for edit in finding.fix.edits)


def _apart(findings: Sequence[Finding]) -> list[Finding]:
    """As many of the findings as have edits that do not touch each other, the first ones first."""
    chosen: list[Finding] = []
    taken: list[Edit] = []
    for finding in findings:
        if not any(_touch(edit, other) for edit in finding.fix.edits for other in taken):
            chosen.append(finding)
            taken += finding.fix.edits
    return chosen


def _touch(one: Edit, other: Edit) -> bool:
    """Do two edits share a position, be it only an end?"""
    one_start, one_end = (one.line, one.column), (one.end_line, one.end_column)
    other_start, other_end = (other.line, other.column), (other.end_line, other.end_column)
    return one_start <= other_end and other_start <= one_end
