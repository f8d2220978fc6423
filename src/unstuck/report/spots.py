"""Where a diagnosis is shown, for the formats that name a spot on one line."""

from __future__ import annotations

import os
from pathlib import Path

from unstuck.events import Place
from unstuck.findings import Diagnosis
from unstuck.findings.result import Result


def spot_of(diagnosis: Diagnosis, result: Result) -> Place | None:
    """The guilty line; the script that ran, where the line is not known."""
    if diagnosis.lead.place:
        return diagnosis.lead.place
    ran = result.run.script if result.run else ""
    return Place(ran, 0) if ran.endswith(".py") else None


def by_place(result: Result) -> list[Diagnosis]:
    """The diagnoses from the top of the first file to the end of the last, then those without a place."""

    def order(diagnosis: Diagnosis) -> tuple[bool, str, int, int, int]:
        spot = spot_of(diagnosis, result) or Place("", 0)
        return not spot.path, spot.path, spot.cell, spot.line, spot.column

    return sorted(result.verdict.diagnoses, key=order)


def spelled(place: Place) -> str:
    """`train.py:41:16`, or `notes.ipynb:cell 3:2:5` inside a notebook, as far as it is known."""
    numbers = [str(number) for number in (place.line, place.line and place.column) if number]
    return ":".join([place.document, *numbers])


def with_cell(place: Place | None, sentence: str) -> str:
    """The sentence, after cell and line in a notebook: its lines are not lines of the file."""
    if place is None or not place.cell:
        return sentence
    return f"cell {place.cell}, line {place.line}: {sentence}"


def below(path: str, root: str) -> str | None:
    """The path as seen from `root`, with forward slashes; None where it lies elsewhere."""
    seen = os.path.normpath(os.path.join(os.getcwd(), path))
    folder = os.path.normpath(root)
    return Path(seen).relative_to(folder).as_posix() if Path(seen).is_relative_to(folder) else None
