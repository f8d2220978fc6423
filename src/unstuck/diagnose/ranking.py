"""In which order findings are tried and reported, once some of their remedies were tried."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from unstuck.findings import Confidence, Diagnosis, Finding, Severity
from unstuck.interventions import EditSource, Intervention

SYMPTOMS = ("O01",)
"""That a loop cannot learn one batch follows from whatever else is found in it."""


def each_code_first(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The first of each code, then the others: there may not be time for all."""
    first = {diagnosis.lead.code: diagnosis for diagnosis in reversed(diagnoses)}
    return [*(d for d in diagnoses if first[d.lead.code] is d), *(d for d in diagnoses if first[d.lead.code] is not d)]


def proven(finding: Finding, suffers: bool) -> Finding:
    """What an experiment has shown is no guess any more; yet what a run learns in spite of is no error."""
    if finding.severity is Severity.ADVICE:
        return finding
    severity = Severity.ERROR if suffers else finding.severity
    return msgspec.structs.replace(finding, severity=severity, confidence=Confidence.CERTAIN)


def order_of(diagnosis: Diagnosis, verdict: str, explained: set[str]) -> int:
    """What was confirmed goes first, what was tried in vain last. A symptom does not overtake a cause that could not be
    tried: what mends the one may only cover up the other."""
    if diagnosis.severity is Severity.ADVICE:
        return 4
    if diagnosis.lead.code in SYMPTOMS:
        return 2
    if verdict == "confirmed" and diagnosis.lead.code in explained:
        return 1
    return {"confirmed": 0, "no effect": 3, "worse": 3}.get(verdict, 1)


def compatible(changes: Sequence[Intervention]) -> bool:
    """Do the edits among them touch different lines?"""
    spans = sorted(
        (edit.path, edit.line, edit.end_line) for c in changes if isinstance(c, EditSource) for edit in c.edits
    )
    return all(a[0] != b[0] or a[2] < b[1] for a, b in itertools.pairwise(spans))
