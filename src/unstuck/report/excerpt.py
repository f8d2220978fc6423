"""Quoting the user's code: numbered lines, the guilty part underlined."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unstuck.events import Place
from unstuck.regular import LARGEST_SCRIPT, read_regular
from unstuck.report.terminal import Line

TAB = 4
MOST_LINES = 6
"""A place that spans more lines than this is quoted by its first one."""


class Sources:
    """The lines of the user's files, read once, never of a file that is not to be quoted."""

    def __init__(self, hidden: Iterable[str] = (), texts: Mapping[str, str] | None = None) -> None:
        self._files: dict[str, list[str]] = {path: [] for path in hidden}
        self._files.update({path: text.split("\n") for path, text in (texts or {}).items()})

    def line(self, path: str, number: int, cell: int = 0) -> str | None:
        """Line `number` of a file or notebook cell, counted from 1, or None where it cannot be shown."""
        document = f"{path}:cell {cell}" if cell else path
        if document not in self._files:
            self._files[document] = _read_cell(path, cell) if cell else _read(path)
        lines = self._files[document]
        return lines[number - 1] if 0 < number <= len(lines) else None


def _read(path: str) -> list[str]:
    try:
        text = read_regular(path, LARGEST_SCRIPT).decode("utf-8-sig", errors="replace")
        return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    except (OSError, ValueError):
        return []


def _read_cell(path: str, cell: int) -> list[str]:
    from unstuck.source import SourceError
    from unstuck.source.documents.document import open_document

    try:
        read_regular(path, LARGEST_SCRIPT)  # a record may name anything
        document = open_document(Path(path))
    except (SourceError, OSError):
        return []
    return [row.text for row in document.rows if row.cell == cell]


def excerpt(place: Place, related: Sequence[Place], sources: Sources, width: int) -> list[Line]:
    """Where it is, then the guilty line and the related ones by line; lines of other files come last."""
    shown = [(place, "mark"), *((other, "other") for other in related)]
    shown = [(spot, style) for spot, style in shown if sources.line(spot.path, spot.line, spot.cell) is not None]
    shown.sort(key=lambda item: (item[0].document != place.document, item[0].path, item[0].cell, item[0].line))
    gutter = max((len(str(_last_line(spot))) for spot, _ in shown), default=1)
    lines: list[Line] = [[(" " * gutter + "--> ", "label"), (spell_out(place), "")]]
    previous: Place | None = None
    for spot, style in shown:
        if spot.document != (previous or place).document:
            lines += [_bar(gutter), [(" " * gutter + "::: ", "label"), (spell_out(spot), "")]]
            previous = None
        far = previous is not None and spot.line > _last_line(previous) + 1
        lines += [[("...", "label")]] if far else [] if previous else [_bar(gutter)]
        lines += _quoted(spot, style, sources, gutter, width)
        previous = spot
    return [*lines, _bar(gutter)] if shown else lines


def spell_out(place: Place) -> str:
    """`train.py:41:16 in Net.forward`, as far as it is known."""
    column = f":{place.column}" if place.column else ""
    function = f" in {place.function}" if place.function and not place.function.startswith("<") else ""
    return f"{place}{column}{function}"


def _bar(gutter: int) -> Line:
    return [(" " * gutter + " |", "label")]


def _last_line(place: Place) -> int:
    within = place.line <= place.end_line < place.line + MOST_LINES
    return place.end_line if within else place.line


def _quoted(place: Place, style: str, sources: Sources, gutter: int, width: int) -> list[Line]:
    lines: list[Line] = []
    for number in range(place.line, _last_line(place) + 1):
        text = sources.line(place.path, number, place.cell)
        if text is None:
            break
        start, end = _marked_columns(place, number, text)
        code, mark = _cropped(text, start, end, width - gutter - 4)
        sign = "^" if style == "mark" else "-"
        lines.append([(f"{number:>{gutter}} | ", "label"), (code, "")])
        lines.append([(" " * gutter + " | ", "label"), (mark.replace("^", sign), style)])
    return lines


def _marked_columns(place: Place, number: int, text: str) -> tuple[int, int]:
    """Which characters of the line to underline, from 0; the whole statement where columns are unknown."""
    blank = len(text) - len(text.lstrip())
    start = place.column - 1 if number == place.line and place.column else blank
    end = len(_code_part(text))
    if place.end_column and number == place.end_line and place.column:
        end = place.end_column - 1
    return min(start, len(text)), max(min(end, len(text)), start + 1)


def _code_part(text: str) -> str:
    before = text.split("  #")[0].rstrip()
    return before or text.rstrip()


def _cropped(text: str, start: int, end: int, room: int) -> tuple[str, str]:
    """The line and its underline, cut to `room` columns around the underlined part."""
    before, marked = _printable(text[:start]), _printable(text[start:end])
    whole = before + marked + _printable(text[end:])
    left, length = _width(before), max(1, _width(marked))
    if _width(whole.rstrip()) <= room or room < 20:
        return whole.rstrip(), " " * left + "^" * length
    cut = max(0, left - room // 3) if left + min(length, room // 2) > room - 1 else 0
    part = whole[cut : cut + room - 2]
    lead = "…" if cut else ""
    tail = "…" if len(whole) > cut + room - 2 else ""
    mark = " " * (left - cut + len(lead)) + "^" * length
    return lead + part + tail, mark[:room]


def _printable(text: str) -> str:
    expanded = text.replace("\t", " " * TAB).replace("\r", "")
    return "".join(letter if letter.isprintable() else "?" for letter in expanded)


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_cells(letter) for letter in text)


def _cells(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
