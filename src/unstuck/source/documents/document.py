"""A source file on disk: edited by position, written back with every other byte unchanged."""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from unstuck.findings import Edit
from unstuck.lazy import pattern
from unstuck.source.documents.files import SourceError, decode, encoding_of, read_raw

LINE_END = pattern(r"(\r\n|\r|\n)")


class Row(NamedTuple):
    """One line, how it ends, and the notebook cell it belongs to (0: none)."""

    text: str
    end: str = "\n"
    cell: int = 0


def splice(rows: Sequence[Row], edits: Sequence[Edit], usual_end: str = "\n") -> list[Row]:
    """The rows with the edits made, which must not overlap. New lines end as their neighbour does."""
    new = list(rows)
    for edit in sorted(edits, key=_start, reverse=True):
        first, last = new[edit.line - 1], new[edit.end_line - 1]
        *pieces, end = (first.text[: edit.column - 1] + edit.text + last.text[edit.end_column - 1 :]).split("\n")
        inner = [Row(piece, last.end or usual_end, first.cell) for piece in pieces]
        new[edit.line - 1 : edit.end_line] = [*inner, Row(end, last.end, last.cell)]
    return new


def _start(edit: Edit) -> tuple[int, int, int, int]:
    return (edit.line, edit.column, edit.end_line, edit.end_column)


def rows_of(text: str, cell: int = 0) -> list[Row]:
    """The lines of a text with their ends; the last has none, and is empty where the text ends in a newline."""
    parts = [*LINE_END.split(text), ""]
    return [Row(parts[index], parts[index + 1], cell) for index in range(0, len(parts), 2)]


class Document:
    """A Python file. `text` is what rules read, with `\\n` as line end; `raw` is the file on disk."""

    def __init__(self, raw: bytes, name: str) -> None:
        decode(raw, name)  # raises the sentence for the user if it is not Python text
        self.name = name
        self._encoding = encoding_of(raw)
        self._mark = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
        self.rows = rows_of(raw.decode(self._encoding))
        if self.raw != raw:
            raise SourceError(f"{name} cannot be written back in its encoding {self._encoding}; save it as UTF-8.")

    @property
    def text(self) -> str:
        """What rules read."""
        return "\n".join(row.text for row in self.rows)

    @property
    def raw(self) -> bytes:
        """The bytes of the file; raises UnicodeEncodeError where the file's encoding lacks a character."""
        whole = "".join(row.text + row.end for row in self.rows)
        return self._mark + whole.encode(self._encoding.removesuffix("-sig"))

    def edited(self, edits: Sequence[Edit]) -> Document:
        """The same file with the edits made."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.rows = splice(self.rows, edits, self._usual_end)
        return new

    @property
    def parts(self) -> dict[str, list[str]]:
        """The lines with their ends, by the name under which a diff shows them."""
        return {self.name: shown_lines(self.rows)}

    @property
    def _usual_end(self) -> str:
        ends = [row.end for row in self.rows if row.end]
        return max(set(ends), key=ends.count, default="\n")


def shown_lines(rows: Sequence[Row]) -> list[str]:
    """Lines for a diff, without the empty one after a final newline."""
    # A lone carriage return would join two lines of a diff.
    lines = [row.text + ("\n" if row.end == "\r" else row.end) for row in rows]
    return lines if lines and lines[-1] else lines[:-1]


def open_document(path: Path) -> Document:
    """The file, as a notebook if its name ends in `.ipynb`, or a SourceError."""
    if path.suffix == ".ipynb":
        from unstuck.source.documents.notebook import Notebook

        return Notebook(read_raw(path), str(path))
    return Document(read_raw(path), str(path))


def write_back(path: Path, before: bytes, after: bytes) -> None:
    """Replace `before` by `after` atomically, with the file's permissions, or raise a SourceError."""
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.read_bytes() != before:
            raise SourceError(f"{path} changed in the meantime and was not modified; run the command again.")
        if not os.access(target, os.W_OK):
            raise SourceError(f"{path} cannot be written (permission denied); it was not modified.")
        try:
            draft.write_bytes(after)
            _copy_rights(target, draft)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as problem:
        raise SourceError(f"{path} cannot be written ({problem.strerror or problem}); it was not modified.") from None


def _copy_rights(source: Path, target: Path) -> None:
    known = source.stat()
    # Only root may give a file away, and some systems have no owners.
    with contextlib.suppress(OSError, AttributeError):
        os.chown(target, known.st_uid, known.st_gid)
    target.chmod(known.st_mode & 0o7777)
