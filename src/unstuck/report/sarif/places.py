"""Places as SARIF writes them: URIs below SRCROOT, and regions with columns counted in characters."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from unstuck.events import Place
from unstuck.findings import Edit
from unstuck.report.json import Json
from unstuck.report.spots import below

UNESCAPED = "/~!$&'()*+,;=@"
"""What a path may hold besides letters and digits; a colon in front of the first slash would look like a scheme."""


def artifact(path: str) -> Json:
    """A file: relative to the folder the command was run in, absolute when it lies elsewhere."""
    relative = below(path, os.getcwd())
    if relative is None:
        return {"uri": Path(os.path.abspath(path)).as_uri()}
    return {"uri": quote(os.fsencode(relative), safe=UNESCAPED), "uriBaseId": "SRCROOT"}


def location(place: Place, message: str = "", number: int = 0) -> Json:
    """A location. In a notebook it names the cell, since the lines of a cell are not lines of the file."""
    physical: Json = {"artifactLocation": artifact(place.path)}
    if place.line and not place.cell:
        physical["region"] = _region(place)
    found: Json = {"physicalLocation": physical}
    logical = _logical(place)
    if logical:
        found["logicalLocations"] = [logical]
    if message:
        found["message"] = {"text": message}
    return {"id": number, **found} if number else found


def _logical(place: Place) -> Json:
    if place.cell:
        return {"name": f"cell {place.cell}, line {place.line}"}
    named = place.function and not place.function.startswith("<")
    return {"fullyQualifiedName": place.function, "kind": "function"} if named else {}


def _region(place: Place) -> Json:
    region: Json = {"startLine": place.line}
    if place.column:
        region["startColumn"] = place.column
    if place.end_line >= place.line:
        region["endLine"] = place.end_line
        if place.column and place.end_column:
            region["endColumn"] = place.end_column
    return region


def deleted_region(edit: Edit) -> Json:
    """What an edit replaces; empty, where it only inserts."""
    return {
        "startLine": edit.line,
        "startColumn": edit.column,
        "endLine": edit.end_line,
        "endColumn": edit.end_column,
    }
