"""P03: positions of a sequence can be exchanged and nothing changes."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P03",
    name="order-does-not-matter",
    title="the positions of a sequence can be exchanged and nothing changes",
    severity=Severity.WARNING,
    explains=("O01", "R03", "R08"),
)

CAUSE = (
    "The model sees a bag of elements: attention and means over time do not know where an element is unless positions "
    "are added."
)
FIX = (
    "Add an embedding of the positions to the inputs of the first layer. If the answer does not depend on the order, "
    "as for sets and bags of words, look elsewhere."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` put the positions of all examples in another order, and the run does not learn."""
    if not broken_relations.is_in_trouble(experiment):
        return  # sets and bags of words are meant to have no order
    for answer in broken_relations.broken_in(experiment, Relation.ORDER):
        yield rule.finding(
            answer.sentence,
            cause=CAUSE,
            fix=FIX,
            subject=Subject("input", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("positions", "loss", "model")),
            confidence=Confidence.LIKELY,
        )
