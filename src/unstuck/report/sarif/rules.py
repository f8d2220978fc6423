"""Rules as SARIF describes them, each with its page as help."""

from __future__ import annotations

from unstuck.findings import Diagnosis, Severity
from unstuck.findings.verdict import Verdict
from unstuck.report.help import markdown_of, sections_of
from unstuck.report.json import Json
from unstuck.rule import Rule, all_rules

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "recommendation"}
"""The words of GitHub's code scanning."""


def descriptors(verdict: Verdict) -> list[Json]:
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
