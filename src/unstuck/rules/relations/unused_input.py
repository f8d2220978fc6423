"""P01: an input, or a part of one, that changes neither the loss nor its gradient."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P01",
    name="unused-input",
    title="an input, or a part of one, changes neither the loss nor its gradient",
    severity=Severity.WARNING,
    explains=("O01", "R03", "R08"),
)

NOTHING = "Nothing that the model is given reaches its loss, so it can only learn one answer for all examples."
PART = (
    "The model gets it, and what it computes from it never reaches the loss: it is overwritten, sliced off, multiplied "
    "by 0, or only one position of a sequence is taken."
)
FIX = "Follow it through forward() to where it is dropped; if that is meant, do not pass it."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` gave examples the inputs of others, whole and in parts."""
    for answer in broken_relations.broken_in(experiment, Relation.INPUTS):
        is_all = answer.form == "nothing"
        quiet = broken_relations.learns(experiment) and not is_all
        yield rule.finding(
            answer.sentence,
            cause=NOTHING if is_all else PART,
            fix=FIX,
            subject=Subject("input", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("unused", "size", "share", "loss")),
            severity=Severity.ERROR if is_all else Severity.ADVICE if quiet else Severity.WARNING,
            confidence=Confidence.CERTAIN if is_all or answer.form == "argument" else Confidence.LIKELY,
        )
