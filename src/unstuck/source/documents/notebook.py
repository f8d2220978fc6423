"""Jupyter notebooks as scripts: the code cells in order, without what is not Python.

The file does not say in which order cells were run: it is read as if they were run from top to bottom.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from unstuck.events import Place
from unstuck.findings import Diagnosis, Edit, Evidence, Finding, Fix, Subject
from unstuck.lazy import pattern
from unstuck.source.documents.document import Document, Row, rows_of, shown_lines
from unstuck.source.documents.files import SourceError
from unstuck.source.documents.magics import python_lines

OLDEST_FORMAT = 4
DECODER = json.JSONDecoder(strict=False)
BLANK = pattern(r"[ \t\r\n]*")


class Cell(NamedTuple):
    """A code cell: its number among all cells from 1, its source, and where that is in the file's text."""

    number: int
    source: str
    start: int
    end: int


class Notebook(Document):
    """A notebook whose `text` is the script of its code cells; after each cell comes a line that belongs to no cell."""

    def __init__(self, raw: bytes, name: str) -> None:
        self.name = name
        self._json = _decoded(raw, name)
        self._mark = raw[: len(raw) - len(self._json.encode())]
        self._cells = list(_code_cells(self._json, name))
        self.rows = [row for cell in self._cells for row in (*rows_of(cell.source, cell.number), Row(""))]
        self._python: dict[int, tuple[list[str], list[str]]] = {}

    @property
    def text(self) -> str:
        """What rules read: magics and shell commands are replaced by lines that do nothing."""
        lines: list[str] = []
        for cell in self._cells:
            lines += [*self._python_of(cell.number), ""]
        return "\n".join(lines)

    @property
    def raw(self) -> bytes:
        """The file with the sources of changed cells replaced and everything else as it was."""
        parts, done = [], 0
        for cell in self._cells:
            new = self._source_of(cell)
            if new != cell.source:
                old = self._json[cell.start : cell.end]
                parts += [self._json[done : cell.start], _source_value(old, new, self._json.isascii())]
                done = cell.end
        return self._mark + "".join([*parts, self._json[done:]]).encode()

    @property
    def parts(self) -> dict[str, list[str]]:
        """The lines of each code cell."""
        return {f"{self.name}:cell {cell.number}": shown_lines(self._lines_of(cell.number)) for cell in self._cells}

    def edited(self, edits: Sequence[Edit]) -> Document:
        """The same notebook with the edits made; no edit may reach into another cell or change a magic."""
        lines = self.text.split("\n")
        for edit in edits:
            first, last = self.rows[edit.line - 1], self.rows[edit.end_line - 1]
            if not first.cell or (last.cell != first.cell and (last.cell or edit.end_column > 1)):
                raise SourceError(f"{self.name}: a fix would span two cells; change it by hand.")
            touched = range(edit.line - 1, edit.end_line - (edit.end_column == 1))
            if any(self.rows[index].text != lines[index] for index in touched):
                raise SourceError(f"{self.name}: a fix would change a line that is not Python; change it by hand.")
        return super().edited(edits)

    def place_of(self, place: Place) -> Place:
        """The same place counted within its cell."""
        if place.path != self.name or not 0 < place.line <= len(self.rows):
            return place
        cell, above = self._position(place.line)
        end = max(place.end_line - above, 0)
        return msgspec.structs.replace(place, line=place.line - above, end_line=end, cell=cell)

    def diagnosis_of(self, diagnosis: Diagnosis) -> Diagnosis:
        """The same diagnosis, with every place counted within its cell."""
        findings = tuple(map(self.finding_of, diagnosis.findings))
        return msgspec.structs.replace(diagnosis, lead=self.finding_of(diagnosis.lead), findings=findings)

    def finding_of(self, finding: Finding) -> Finding:
        """The same finding, with every place and every edit counted within its cell."""
        related = tuple(self.place_of(place) for place in finding.related)
        edits = tuple(self._edit_of(edit) for edit in finding.fix.edits)
        return msgspec.structs.replace(
            finding,
            message=self._renumbered(finding.message),
            cause=self._renumbered(finding.cause),
            subject=Subject(finding.subject.kind, self._renumbered(finding.subject.name)),
            place=finding.place and self.place_of(finding.place),
            related=related,
            evidence=tuple(self._evidence_of(item) for item in finding.evidence),
            fix=Fix(self._renumbered(finding.fix.text), edits, finding.fix.safety),
        )

    def error_of(self, error: SourceError) -> SourceError:
        """The same error, with its place counted within the cell."""
        return SourceError(self._renumbered(str(error)), error.place and self.place_of(error.place))

    def _evidence_of(self, item: Evidence) -> Evidence:
        value = self._renumbered(item.value) if isinstance(item.value, str) else item.value
        return msgspec.structs.replace(item, value=value, place=item.place and self.place_of(item.place))

    def _edit_of(self, edit: Edit) -> Edit:
        cell, above = self._position(edit.line)
        return msgspec.structs.replace(edit, line=edit.line - above, end_line=edit.end_line - above, cell=cell)

    def _renumbered(self, sentence: str) -> str:
        """`nb.ipynb:41` within a sentence becomes `nb.ipynb:cell 3:2`."""
        if self.name not in sentence:
            return sentence
        spelled = re.compile(rf"{re.escape(self.name)}:(\d+)")
        return spelled.sub(lambda match: str(self.place_of(Place(self.name, int(match[1])))), sentence)

    def _position(self, line: int) -> tuple[int, int]:
        """The cell of a line of the script, and how many lines are above that cell."""
        start = line - 1
        while start > 0 and self.rows[start - 1].cell:
            start -= 1
        return self.rows[line - 1].cell, start

    def _lines_of(self, number: int) -> list[Row]:
        return [row for row in self.rows if row.cell == number]

    def _python_of(self, number: int) -> list[str]:
        lines = [row.text for row in self._lines_of(number)]
        known = self._python.get(number)
        if known is None or known[0] != lines:
            known = self._python[number] = (lines, python_lines(lines))
        return known[1]

    def _source_of(self, cell: Cell) -> str:
        """The content of the cell now; its last line ends as before."""
        rows = self._lines_of(cell.number)
        return "".join(row.text + row.end for row in rows[:-1]) + (rows[-1].text if rows else "")


def _decoded(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError(f"{name} is not UTF-8 text, as notebooks are; save it again from Jupyter.") from None


def _code_cells(text: str, name: str) -> Iterator[Cell]:
    """The code cells of a Python notebook, or a SourceError that says why there are none."""
    try:
        whole = DECODER.decode(text)
    except (ValueError, RecursionError) as problem:
        line = getattr(problem, "lineno", 1)
        raise SourceError(
            f"{name} is not a notebook: its JSON is invalid at line {line}; open and save it again."
        ) from None
    if not isinstance(whole, dict) or not isinstance(whole.get("nbformat"), int):
        raise SourceError(f"{name} is not a notebook: it has no nbformat; open it in Jupyter and save it again.")
    if whole["nbformat"] < OLDEST_FORMAT:
        raise SourceError(
            f"{name} has the old notebook format {whole['nbformat']}; run jupyter nbconvert --to notebook."
        )
    language = _language(whole.get("metadata"))
    if re.sub(r"\d.*", "", language.lower()).strip() not in ("", "python", "ipython"):
        raise SourceError(f"{name} is a notebook in {language}, not in Python; it was skipped.")
    if not isinstance(whole.get("cells"), list):
        raise SourceError(f"{name} is not a notebook: it has no list of cells; open it in Jupyter and save it again.")
    for number, (value, start, _) in enumerate(_elements(text, _members(text, 0)["cells"][0]), 1):
        if isinstance(value, dict) and value.get("cell_type") == "code" and "source" in value:
            source = value["source"]
            joined = "".join(map(str, source)) if isinstance(source, list) else str(source)
            yield Cell(number, joined, *_members(text, start)["source"])


def _language(metadata: Any) -> str:
    """The language of the kernel; empty if the notebook does not say."""
    for section, key in (("kernelspec", "language"), ("language_info", "name")):
        part = metadata.get(section) if isinstance(metadata, dict) else None
        word = part.get(key) if isinstance(part, dict) else None
        if isinstance(word, str) and word:
            return word
    return ""


def _skip(text: str, at: int) -> int:
    found = BLANK.match(text, at)
    return found.end() if found else at


def _members(text: str, at: int) -> dict[str, tuple[int, int]]:
    """Where the value of each key of an object is; the object begins at `at` or after blanks."""
    found: dict[str, tuple[int, int]] = {}
    at = _skip(text, _skip(text, at) + 1)
    while text[at] != "}":
        key, at = DECODER.raw_decode(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = DECODER.raw_decode(text, start)
        found[key] = (start, end)
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return found


def _elements(text: str, at: int) -> Iterator[tuple[Any, int, int]]:
    """The values of an array, each with its start and end."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        value, end = DECODER.raw_decode(text, at)
        yield value, at, end
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _source_value(old: str, new: str, ascii_only: bool) -> str:
    """The JSON of a changed source, in the style of the old one; unchanged lines stay as they are."""
    if not old.startswith("["):
        return json.dumps(new, ensure_ascii=ascii_only)
    tokens = list(_elements(old, 0))
    spelled = {value: old[start:end] for value, start, end in tokens}
    lines = [row.text + row.end for row in rows_of(new)]
    lines = lines if lines[-1] else lines[:-1]
    opening, closing = old[: tokens[0][1]], old[tokens[-1][2] :]
    between = old[tokens[0][2] : tokens[1][1]] if len(tokens) > 1 else "," + opening[1:]
    body = between.join(spelled.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in lines)
    return opening + body + closing if lines else "[]"
