"""P09: read with other axes, the same inputs are far smoother."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import broken_relations

rule = Rule(
    code="P09",
    name="scrambled-input",
    title="read with other axes, the same inputs are far smoother",
    severity=Severity.WARNING,
    explains=("M13", "O07", "R03", "R08"),
)

CAUSE = (
    "A view or reshape gives the numbers new axes and leaves them in their old order: neighbours are no longer next to "
    "each other, and a convolution sees noise."
)
FIX = "Use permute or transpose to exchange axes; view and reshape only split or join them."
READING = "reading"


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` compared the smoothness of the inputs with that of other readings of the same numbers."""
    for answer in broken_relations.broken_in(experiment, Relation.LAYOUT):
        reading = answer.measures.get(READING)
        yield rule.finding(
            answer.sentence,
            cause=CAUSE,
            fix=FIX,
            subject=Subject("input", answer.subject),
            place=answer.place,
            evidence=[
                *broken_relations.evidence(answer, ("roughness", "read otherwise")),
                Evidence(READING, str(reading)),
            ],
            severity=Severity.ADVICE if broken_relations.learns(experiment) else Severity.WARNING,
            confidence=Confidence.LIKELY,
        )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """The axes that fit."""
    from unstuck.interventions.change_inputs import Layout, RestoreLayout

    for evidence in finding.evidence:
        if evidence.name == READING:
            yield (RestoreLayout(Layout(str(evidence.value))),)
