"""P05: answers are worse in evaluation mode, and neither dropout nor batch statistics explain that."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P05",
    name="mode-gap",
    title="the same batch is answered worse in evaluation mode than in training mode, because of the model's own code",
    severity=Severity.WARNING,
    explains=("M13",),
)

CAUSE = (
    "What it does differently in evaluation mode is not what the weights were trained for: a scale, a normalization or "
    "a branch that only one of the modes has."
)
FIX = "Look for self.training in it: what one branch does to the expected values, the other must do, too."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` answered the first batch again at the end, with the modes of modules changed one by one."""
    for answer in broken_relations.broken_in(experiment, Relation.MODES):
        yield rule.finding(
            answer.sentence,
            cause=CAUSE,
            fix=FIX,
            subject=Subject("module", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("module", "in training mode", "in evaluation mode")),
            confidence=Confidence.LIKELY,
        )
