"""One line per diagnosis, in the form that editors and `grep` know: `train.py:41:16: O12 error ...`."""

from __future__ import annotations

from unstuck.findings import Diagnosis
from unstuck.findings.result import Result
from unstuck.report.spots import by_place, spelled, spot_of


def render(result: Result) -> str:
    """The lines; nothing at all when nothing was found."""
    return "".join(_line(diagnosis, result) + "\n" for diagnosis in by_place(result))


def _line(diagnosis: Diagnosis, result: Result) -> str:
    lead = diagnosis.lead
    spot = spot_of(diagnosis, result)
    where = f"{spelled(spot)}: " if spot else ""
    line = f"{where}{lead.code} {diagnosis.severity.value} {lead.name}: {lead.message}"
    return "".join(letter if letter.isprintable() else " " for letter in line)
