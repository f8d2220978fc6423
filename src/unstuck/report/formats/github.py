"""Workflow commands of GitHub Actions, which it shows next to the lines of a pull request."""

from __future__ import annotations

import os

from unstuck.events import Place
from unstuck.findings import Diagnosis, Severity
from unstuck.findings.result import Problem, Result
from unstuck.report.spots import below, by_place, spot_of, with_cell

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def render(result: Result) -> str:
    """One command per diagnosis, and one per file that could not be read."""
    found = [_annotation(diagnosis, result) for diagnosis in by_place(result)]
    return "".join(line + "\n" for line in (*found, *map(_problem, result.errors)))


def _annotation(diagnosis: Diagnosis, result: Result) -> str:
    lead = diagnosis.lead
    spot = spot_of(diagnosis, result)
    body = f"{with_cell(spot, lead.message)}\n{lead.fix.text}\n{lead.docs}"
    return _command(COMMANDS[diagnosis.severity], spot, f"{lead.code} {lead.name}", body)


def _problem(problem: Problem) -> str:
    return _command("error", problem.place, "unstuck could not look", problem.message)


def _command(name: str, place: Place | None, title: str, message: str) -> str:
    properties = {**_where(place), "title": title}
    listed = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    return f"::{name} {listed}::{_data(message)}"


def _where(place: Place | None) -> dict[str, str | int]:
    """File and lines. GitHub takes columns only where they are columns of one line."""
    if place is None:
        return {}
    found: dict[str, str | int] = {"file": _in_workspace(place.path)}
    if not place.line or place.cell:
        return found
    last = max(place.end_line, place.line)
    found["line"] = place.line
    if place.column and last == place.line:
        found["col"] = place.column
    found["endLine"] = last
    if place.column and last == place.line and place.end_column:
        found["endColumn"] = place.end_column
    return found


def _in_workspace(path: str) -> str:
    """GitHub reads paths from the top of the repository, wherever the command ran."""
    root = os.environ.get("GITHUB_WORKSPACE")
    return (below(path, root) if root else None) or path.replace(os.sep, "/")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
