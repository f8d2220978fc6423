"""P07: a state with a row for each example goes from one random batch to the next."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P07",
    name="state-leaks",
    title="a state with a row for each example goes from one random batch to the next",
    severity=Severity.WARNING,
    explains=("M13",),
)

CAUSE = (
    "A state may go on where each batch continues the sequences of the one before. Here it comes from other examples, "
    "so it is noise for these, and answers depend on what was asked before."
)
FIX = "Begin every batch with a new state (zeros, or None), or give batches in which row i continues row i."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` looked at what the second batch was given, and changed an example of the first."""
    for answer in broken_relations.broken_in(experiment, Relation.STATE):
        yield rule.finding(
            answer.sentence,
            cause=CAUSE,
            fix=FIX,
            subject=Subject("model", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("change", "shape", "examples")),
            confidence=Confidence.LIKELY,
        )
