"""SARIF 2.1.0, the form in which code scanning services take results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from unstuck._version import __version__
from unstuck.events import Place
from unstuck.findings import Diagnosis, Edit, Finding, Severity
from unstuck.findings.result import Problem, Result
from unstuck.findings.verdict import Verdict
from unstuck.report.excerpt import Sources
from unstuck.report.help import markdown_of, sections_of
from unstuck.report.json import Json, encode
from unstuck.report.spots import below, spot_of, with_cell
from unstuck.rule import Rule, all_rules

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "unstuckFinding/v1"
UNESCAPED = "/~!$&'()*+,;=@"
"""What a path may hold besides letters and digits; a colon before the first slash would look like a scheme."""
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "recommendation"}
"""The words of GitHub's code scanning."""


def render(result: Result) -> str:
    """The result as a SARIF log with one run."""
    return encode({"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(result)]})


def _run(result: Result) -> Json:
    verdict = result.verdict
    rules = _descriptors(verdict)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    sources = Sources(result.changed, result.texts)
    reported = (*verdict.diagnoses, *verdict.ignored)
    marks = _fingerprints(reported, result, sources)
    return {
        "tool": {"driver": {"name": "unstuck", "version": __version__, "rules": rules}},
        "automationDetails": {"id": f"unstuck/{result.command}/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"description": {"text": "The folder in which the command was run."}}},
        "invocations": [_invocation(result)],
        "results": [
            {
                **_result(diagnosis, result, index[diagnosis.lead.code], sources),
                "partialFingerprints": {FINGERPRINT: mark},
                "suppressions": [{"kind": "inSource"}] if diagnosis in verdict.ignored else [],
            }
            for diagnosis, mark in zip(reported, marks, strict=True)
        ],
        "properties": {"checked": verdict.checked, "notChecked": (*verdict.not_checked, *verdict.gaps)},
    }


def _invocation(result: Result) -> Json:
    return {
        "executionSuccessful": not result.errors,
        "toolExecutionNotifications": [_notification(problem) for problem in result.errors],
    }


def _notification(problem: Problem) -> Json:
    places = [_location(problem.place)] if problem.place else []
    return {"level": "error", "message": {"text": problem.message}, "locations": places}


def _result(diagnosis: Diagnosis, result: Result, rule: int, sources: Sources) -> Json:
    lead = diagnosis.lead
    spot = spot_of(diagnosis, result)
    entry: Json = {
        # A hierarchical id: the rule is the one at ruleIndex (SARIF 2.1.0, 3.27.5 and 3.52.4).
        "ruleId": lead.id,
        "ruleIndex": rule,
        "level": LEVELS[diagnosis.severity],
        "message": {"text": _message(lead, spot)},
        "locations": [_location(spot)] if spot else [],
        "relatedLocations": [
            _location(place, _quoted(place, sources), number) for number, place in enumerate(lead.related, 1)
        ],
        "properties": {
            "name": lead.name,
            "confidence": diagnosis.confidence.value,
            "witnesses": [witness.value for witness in diagnosis.witnesses],
            **({"variant": lead.variant} if lead.variant else {}),
        },
    }
    if lead.place and lead.related:
        entry["codeFlows"] = [_flow(lead, sources)]
    if lead.fix.edits and not any(edit.cell for edit in lead.fix.edits):
        entry["fixes"] = [_fix(lead)]
    return entry


def _message(lead: Finding, spot: Place | None) -> str:
    parts = (with_cell(spot, lead.message), lead.cause, lead.fix.text)
    return "\n".join(part for part in parts if part)


def _quoted(place: Place, sources: Sources) -> str:
    """The line itself says best what it does."""
    line = sources.line(place.path, place.line, place.cell)
    return with_cell(place, (line or "").strip() or "belongs to the same mistake")


def _flow(lead: Finding, sources: Sources) -> Json:
    steps = [
        {"location": _location(place, _quoted(place, sources)), "executionOrder": number, "importance": weight}
        for number, place in enumerate(_in_order(lead.places), 1)
        for weight in ("essential" if place == lead.place else "important",)
    ]
    return {"message": {"text": lead.message}, "threadFlows": [{"locations": steps}]}


def _in_order(places: Sequence[Place]) -> list[Place]:
    """From where a value is made to where it is used: as the rule lists them, or down the lines of one function."""
    together = len({(place.document, place.function) for place in places}) == 1
    return sorted(places, key=lambda place: (place.line, place.column)) if together else list(places)


def _fix(lead: Finding) -> Json:
    by_file: dict[str, list[Edit]] = {}
    for edit in lead.fix.edits:
        by_file.setdefault(edit.path, []).append(edit)
    return {
        "description": {"text": lead.fix.text},
        "artifactChanges": [
            {"artifactLocation": _artifact(path), "replacements": [_replacement(edit) for edit in edits]}
            for path, edits in by_file.items()
        ],
        "properties": {"safety": lead.fix.safety},
    }


def _replacement(edit: Edit) -> Json:
    return {"deletedRegion": _deleted_region(edit), "insertedContent": {"text": edit.text}}


def _fingerprints(reported: Iterable[Diagnosis], result: Result, sources: Sources) -> Iterator[str]:
    """What stays while other lines come and go: the rule, the file, the line's text, and which one of equals."""
    import hashlib

    counts: dict[tuple[str, ...], int] = {}
    for diagnosis in reported:
        spot = spot_of(diagnosis, result)
        line = sources.line(spot.path, spot.line, spot.cell) if spot else None
        where = (_artifact(spot.path)["uri"], spot.function, (line or "").strip()) if spot else ("", "", "")
        key = (diagnosis.lead.code, *where)
        counts[key] = counts.get(key, 0) + 1
        yield hashlib.sha256("\0".join((*key, str(counts[key]))).encode("utf-8", "replace")).hexdigest()[:32]


def _artifact(path: str) -> Json:
    """A file: relative to the folder the command was run in, absolute when it lies elsewhere."""
    relative = below(path, os.getcwd())
    if relative is None:
        return {"uri": Path(os.path.abspath(path)).as_uri()}
    return {"uri": quote(os.fsencode(relative), safe=UNESCAPED), "uriBaseId": "SRCROOT"}


def _location(place: Place, message: str = "", number: int = 0) -> Json:
    """A location. In a notebook it names the cell, since the lines of a cell are not lines of the file."""
    physical: Json = {"artifactLocation": _artifact(place.path)}
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


def _deleted_region(edit: Edit) -> Json:
    """What an edit replaces; empty, where it only inserts."""
    return {
        "startLine": edit.line,
        "startColumn": edit.column,
        "endLine": edit.end_line,
        "endColumn": edit.end_column,
    }


def _descriptors(verdict: Verdict) -> list[Json]:
    """Every rule that was asked or that found something, by code."""
    known = {rule.code: rule for rule in all_rules()}
    found = {diagnosis.lead.code: diagnosis for diagnosis in (*verdict.diagnoses, *verdict.ignored)}
    codes = sorted({*verdict.checked, *found})
    return [
        _rule(known[code]) if code in known else _unknown(found[code])
        for code in codes
        if code in known or code in found
    ]


def _rule(rule: Rule) -> Json:
    sections = sections_of(rule)
    text = "\n\n".join(f"{heading}\n\n{body}" for heading, body in sections.items())
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": _sentence(rule.title)},
        "fullDescription": {"text": _joined(sections.get("What happens", "")) or _sentence(rule.title)},
        "help": {"text": text or _sentence(rule.title), "markdown": markdown_of(rule)},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"tags": ["pytorch", rule.family], "problem.severity": PROBLEMS[rule.severity]},
    }


def _unknown(diagnosis: Diagnosis) -> Json:
    """A rule that is not in the catalogue says of itself what its findings say."""
    lead = diagnosis.lead
    return {
        "id": lead.code,
        "name": lead.name,
        "shortDescription": {"text": _sentence(lead.name.replace("-", " "))},
        "defaultConfiguration": {"level": LEVELS[diagnosis.severity]},
    }


def _joined(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split())


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
