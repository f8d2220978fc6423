"""JUnit XML, which GitLab, Jenkins and Azure show as tests: a suite per file, a failure per diagnosis."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from unstuck.findings import Diagnosis
from unstuck.findings.result import Problem, Result
from unstuck.report.spots import spelled, spot_of, with_cell
from unstuck.report.terminal import encodable

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


def render(result: Result) -> str:
    """The document. A result without anything to say is one test that passed, since no test at all is an error."""
    suites: dict[str, list[ElementTree.Element]] = {}
    for diagnosis in result.verdict.diagnoses:
        spot = spot_of(diagnosis, result)
        suites.setdefault(spot.path if spot else "unstuck", []).append(_failure(diagnosis, result))
    for problem in result.errors:
        suites.setdefault(problem.place.path if problem.place else "unstuck", []).append(_error(problem))
    if not suites:
        suites["unstuck"] = [_case("unstuck", f"{len(result.verdict.checked)} pitfalls looked for, none found")]
    root = ElementTree.Element("testsuites", name=f"unstuck {result.command}")
    root.extend([_suite(name, cases) for name, cases in suites.items()])
    _count(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(name: str, cases: list[ElementTree.Element]) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_clean(name))
    suite.extend(cases)
    _count(suite)
    return suite


def _count(element: ElementTree.Element) -> None:
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        element.set(attribute, str(sum(1 for _ in element.iter(tag))))


def _case(suite: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_clean(suite), name=_clean(name))


def _failure(diagnosis: Diagnosis, result: Result) -> ElementTree.Element:
    lead = diagnosis.lead
    spot = spot_of(diagnosis, result)
    path = spot.path if spot else "unstuck"
    where = f" at {spelled(spot)}" if spot else ""
    case = _case(path, f"{lead.code} {lead.name}{where}")
    if spot:
        case.set("file", _clean(path))
    if spot and spot.line and not spot.cell:
        case.set("line", str(spot.line))
    details = [with_cell(spot, lead.message), lead.cause, f"Change: {lead.fix.text}", f"More: {lead.docs}"]
    _add(case, "failure", lead.message, f"{diagnosis.severity.value} {lead.code}", "\n".join(filter(None, details)))
    return case


def _error(problem: Problem) -> ElementTree.Element:
    case = _case(problem.place.path if problem.place else "unstuck", "can be looked at")
    _add(case, "error", problem.message, "not checked", problem.message)
    return case


def _add(case: ElementTree.Element, tag: str, message: str, kind: str, text: str) -> None:
    ElementTree.SubElement(case, tag, message=_clean(message), type=kind).text = _clean(text)


def _clean(text: str) -> str:
    return FORBIDDEN.sub("", encodable(text))
