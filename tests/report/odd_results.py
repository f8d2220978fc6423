"""Results with everything that could break a format: odd names, control characters, no place, edits, notebooks."""

from __future__ import annotations

from fakes import detailed_finding, make_finding, make_record

from unstuck.events import Place
from unstuck.findings import Diagnosis, Edit, Finding, Fix, Severity
from unstuck.findings.result import Problem, Result
from unstuck.findings.run_summary import run_summary
from unstuck.findings.verdict import Verdict

ODD_PATH = "my runs/größe 100%,a:b.py"
ODD_MESSAGE = "50% of\r\n\x1b[31mthe <rows>, \x00e.g. ::error::\U0001f600 & \ufffe\"'"


def verdict_of(*findings: Finding, **more: object) -> Verdict:
    diagnoses = tuple(Diagnosis(lead=finding, findings=(finding,)) for finding in findings)
    return Verdict(diagnoses=diagnoses, **more)  # type: ignore[arg-type]


def lint_result(*findings: Finding, problems: tuple[Problem, ...] = (), **more: object) -> Result:
    return Result(command="lint", verdict=verdict_of(*findings, **more), files=3, problems=problems)


def odd_finding() -> Finding:
    edits = (Edit(ODD_PATH, 5, 9, 5, 9, "x = "), Edit("other.py", 1, 1, 2, 3, ""))
    return make_finding(
        message=ODD_MESSAGE,
        severity=Severity.WARNING,
        place=Place(ODD_PATH, 5, 9, 7, 3, "Net.forward"),
        fix=Fix("Drop it.", edits, "safe"),
    )


def everything() -> Result:
    """One result with all of it."""
    return lint_result(
        detailed_finding(),
        odd_finding(),
        make_finding("X99", line=None, severity=Severity.ADVICE),
        make_finding("G10", path="/elsewhere/model.py", related=(Place("train.py", 3),)),
        problems=(Problem("bad.py:3:1 is not valid Python", Place("bad.py", 3, 1)), Problem("gone.py cannot be read")),
        checked=("O12", "G01"),
        not_checked=("G10: only a run shows it",),
        failures=("rule O03 failed on train.py: KeyError: 'x'",),
    )


def run_without_place() -> Result:
    record = make_record(losses=(2.3,) * 3)
    finding = make_finding(line=None)
    verdict = verdict_of(finding)
    return Result(command="run", verdict=verdict, run=run_summary(record, "record", verdict))
