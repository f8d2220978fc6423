"""P02: how far a sequence is padded changes its own answers."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P02",
    name="padding-matters",
    title="what an example gets as an answer depends on how far it is padded",
    severity=Severity.WARNING,
    explains=("R03", "R08"),
)

CAUSE = (
    "Padding takes part in the computation: the mask is missing, inverted or of the wrong axis, the mean counts padded "
    "positions, or the last state is that after the padding."
)
FIX = "Mask padding in attention and means, and take the state at the last real element (pack_padded_sequence)."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` cut the padding off short examples, and the run does not learn."""
    if not broken_relations.is_in_trouble(experiment):
        return  # many models live with some padding in their means
    for answer in broken_relations.broken_in(experiment, Relation.PADDING):
        yield rule.finding(
            answer.sentence,
            cause=CAUSE,
            fix=FIX,
            subject=Subject("model", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("change", "examples", "pad", "length", "short")),
            confidence=Confidence.LIKELY,
        )
