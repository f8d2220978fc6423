"""SARIF 2.1.0, the form in which code scanning services take results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unstuck._version import __version__
from unstuck.events import Place
from unstuck.findings import Diagnosis, Edit, Finding
from unstuck.report.excerpt import Sources
from unstuck.report.json import Json, encode
from unstuck.report.result import Problem, Result
from unstuck.report.sarif.places import artifact, deleted_region, location
from unstuck.report.sarif.rules import LEVELS, descriptors
from unstuck.report.spots import beside_cell, spot_of

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "unstuckFinding/v1"


def render(result: Result) -> str:
    """The result as a SARIF log with one run."""
    return encode({"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(result)]})


def _run(result: Result) -> Json:
    verdict = result.verdict
    rules = descriptors(verdict)
    index = {rule["id"]: number for number, rule in enumerate(rules)}
    sources = Sources(result.changed, result.texts)
    told = (*verdict.diagnoses, *verdict.ignored)
    marks = _fingerprints(told, result, sources)
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
            for diagnosis, mark in zip(told, marks, strict=True)
        ],
        "properties": {"checked": verdict.checked, "notChecked": verdict.not_checked},
    }


def _invocation(result: Result) -> Json:
    return {
        "executionSuccessful": not result.errors,
        "toolExecutionNotifications": [_notification(problem) for problem in result.errors],
    }


def _notification(problem: Problem) -> Json:
    places = [location(problem.place)] if problem.place else []
    return {"level": "error", "message": {"text": problem.message}, "locations": places}


def _result(diagnosis: Diagnosis, result: Result, rule: int, sources: Sources) -> Json:
    lead = diagnosis.lead
    spot = spot_of(diagnosis, result)
    told: Json = {
        # A hierarchical id: the rule is the one at ruleIndex (SARIF 2.1.0, 3.27.5 and 3.52.4).
        "ruleId": lead.id,
        "ruleIndex": rule,
        "level": LEVELS[diagnosis.severity],
        "message": {"text": _message(lead, spot)},
        "locations": [location(spot)] if spot else [],
        "relatedLocations": [
            location(place, _quoted(place, sources), number) for number, place in enumerate(lead.related, 1)
        ],
        "properties": {
            "name": lead.name,
            "confidence": diagnosis.confidence.value,
            "witnesses": [witness.value for witness in diagnosis.witnesses],
            **({"variant": lead.variant} if lead.variant else {}),
        },
    }
    if lead.place and lead.related:
        told["codeFlows"] = [_flow(lead, sources)]
    if lead.fix.edits and not any(edit.cell for edit in lead.fix.edits):
        told["fixes"] = [_fix(lead)]
    return told


def _message(lead: Finding, spot: Place | None) -> str:
    parts = (beside_cell(spot, lead.message), lead.cause, lead.fix.text)
    return "\n".join(part for part in parts if part)


def _quoted(place: Place, sources: Sources) -> str:
    """The line itself says best what it does."""
    line = sources.line(place.path, place.line, place.cell)
    return beside_cell(place, (line or "").strip() or "belongs to the same mistake")


def _flow(lead: Finding, sources: Sources) -> Json:
    steps = [
        {"location": location(place, _quoted(place, sources)), "executionOrder": number, "importance": weight}
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
            {"artifactLocation": artifact(path), "replacements": [_replacement(edit) for edit in edits]}
            for path, edits in by_file.items()
        ],
        "properties": {"safety": lead.fix.safety},
    }


def _replacement(edit: Edit) -> Json:
    return {"deletedRegion": deleted_region(edit), "insertedContent": {"text": edit.text}}


def _fingerprints(told: Iterable[Diagnosis], result: Result, sources: Sources) -> Iterator[str]:
    """What stays while other lines come and go: the rule, the file, the line's text, and which one of equals."""
    import hashlib

    seen: dict[tuple[str, ...], int] = {}
    for diagnosis in told:
        spot = spot_of(diagnosis, result)
        line = sources.line(spot.path, spot.line, spot.cell) if spot else None
        where = (artifact(spot.path)["uri"], spot.function, (line or "").strip()) if spot else ("", "", "")
        key = (diagnosis.lead.code, *where)
        seen[key] = seen.get(key, 0) + 1
        yield hashlib.sha256("\0".join((*key, str(seen[key]))).encode("utf-8", "replace")).hexdigest()[:32]
