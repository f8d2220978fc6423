"""Results and rules as JSON documents, described field by field in docs/json.md. Every key is always there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from unstuck._version import __version__
from unstuck.events import Place
from unstuck.findings import FORMAT_VERSION, Diagnosis, Evidence, Fix, Severity
from unstuck.findings.result import Problem, Result, RunSummary
from unstuck.findings.verdict import Verdict
from unstuck.record.outcome import Outcome
from unstuck.record.trend import Trend
from unstuck.report.terminal import encodable
from unstuck.rule import Rule

Json = dict[str, Any]


def encode(value: object) -> str:
    """Indented JSON; numbers that JSON cannot write (NaN, infinity) become null."""
    return msgspec.json.format(encode_line(value), indent=2) + "\n"


def encode_line(value: object) -> str:
    """JSON on one line. The name of a file may hold halves of characters, which JSON cannot."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(whole(value)).decode()


def whole(value: Any) -> Any:
    """The same without halves of characters in its texts."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return [whole(item) for item in value] if isinstance(value, list | tuple) else value


def document(result: Result) -> Json:
    """The result as plain dicts and lists."""
    verdict = result.verdict
    return {
        "version": FORMAT_VERSION,
        "tool": {"name": "unstuck", "version": __version__},
        "command": result.command,
        "counts": _counts(verdict),
        "files": result.files,
        "run": _run(result.run),
        "diagnoses": [diagnosis_document(item) for item in verdict.diagnoses],
        "unconfirmed": [diagnosis_document(item) for item in verdict.unconfirmed],
        "ignored": len(verdict.ignored),
        "trend": _trend(verdict.trend),
        "outcomes": [_outcome(outcome) for outcome in verdict.outcomes],
        "checked": verdict.checked,
        "not_checked": (*verdict.not_checked, *verdict.gaps),
        "errors": [{"message": item.message, "place": _place(item.place)} for item in result.errors],
    }


def rule_document(rule: Rule, page: str | None = None) -> Json:
    """A rule's identity, with its page where one is given."""
    described: Json = {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity.value,
        "title": rule.title,
        "witnesses": [witness.value for witness in rule.witnesses],
        "variants": dict(rule.variants),
    }
    return described if page is None else {**described, "page": page}


def _counts(verdict: Verdict) -> dict[str, int]:
    return {severity.value: verdict.count(severity) for severity in Severity}


def _run(run: RunSummary | None) -> Json | None:
    if run is None:
        return None
    crash = run.crash
    return {
        "script": run.script,
        "arguments": run.arguments,
        "status": run.status,
        "reason": run.reason,
        "received": list(run.received),
        "exit_code": run.exit_code,
        "steps": run.steps,
        "seconds": run.seconds,
        "crash": {"kind": crash.kind, "message": crash.message, "place": _place(crash.place)} if crash else None,
        "record": run.record,
    }


def diagnosis_document(diagnosis: Diagnosis) -> Json:
    """One diagnosis as plain dicts and lists."""
    lead = diagnosis.lead
    return {
        "code": lead.code,
        "name": lead.name,
        "variant": lead.variant,
        "severity": diagnosis.severity.value,
        "confidence": diagnosis.confidence.value,
        "witnesses": [witness.value for witness in diagnosis.witnesses],
        "place": _place(lead.place),
        "related": _places(lead.related),
        "subject": {"kind": lead.subject.kind, "name": lead.subject.name, "key": lead.subject.key},
        "message": lead.message,
        "evidence": [_evidence(item) for item in diagnosis.evidence],
        "cause": lead.cause,
        "fix": _fix(lead.fix),
        "verify": {"command": lead.verify.command, "expect": lead.verify.expect} if lead.verify else None,
        "docs": lead.docs,
        "explains": diagnosis.explains,
    }


def _place(place: Place | None) -> Json | None:
    if place is None:
        return None
    return {
        "path": place.path,
        "cell": place.cell,
        "line": place.line,
        "column": place.column,
        "end_line": place.end_line,
        "end_column": place.end_column,
        "function": place.function,
    }


def _places(places: Iterable[Place]) -> list[Json | None]:
    return [_place(place) for place in places]


def _evidence(item: Evidence) -> Json:
    return {
        "name": item.name,
        "value": item.value,
        "unit": item.unit,
        "threshold": item.threshold,
        "place": _place(item.place),
    }


def _fix(fix: Fix) -> Json:
    return {
        "text": fix.text,
        "safety": fix.safety,
        "edits": [msgspec.to_builtins(edit) for edit in fix.edits],
    }


def _trend(trend: Trend | None) -> Json | None:
    if trend is None:
        return None
    return {name: getattr(trend, name) for name in trend.__struct_fields__}


def _outcome(outcome: Outcome) -> Json:
    fields = {name: getattr(outcome, name) for name in outcome.__struct_fields__}
    returns = None if outcome.returns is None else msgspec.to_builtins(outcome.returns)
    return fields | {"trend": _trend(outcome.trend), "returns": returns, "trouble": outcome.word.is_trouble}


def _problem(problem: Problem) -> Json:
    return {"message": problem.message, "place": _place(problem.place)}
