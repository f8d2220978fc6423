"""P08: the targets of a sequence belong to other positions than those they are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Finding, Severity, Subject, Variant
from unstuck.findings.relations import Relation
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment


class Shift(Variant):
    """How it shows."""

    SHIFTED = "shifted", "the target is an input that is not the next one: shifted twice, or the wrong way"
    MISALIGNED = "misaligned", "targets fit the inputs of another position much better"


rule = Rule(
    code="P08",
    name="shifted-target",
    title="targets belong to other positions than those they are compared with",
    severity=Severity.WARNING,
    explains=("O01", "O07", "R03", "R08", "M13"),
    variants=Shift.titles(),
)

CAUSES = {
    Shift.SHIFTED: "A prediction of the next element is compared with the wrong one: inputs or targets were shifted "
    "twice (by the script and by the model or the loss), or the wrong way.",
    Shift.MISALIGNED: "Inputs and targets are off by some positions, so a prediction is compared with the answer to "
    "another question.",
}
FIXES = {
    Shift.SHIFTED: "Shift once: give the model tokens[:, :-1] and compare with tokens[:, 1:].",
    Shift.MISALIGNED: "Move the targets back by as many positions; look at slices, padding and delays in the pipeline.",
}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` compared targets with the inputs of other positions."""
    for answer in broken_relations.broken_in(experiment, Relation.ALIGNMENT):
        if broken_relations.learns(experiment):
            continue  # a delay that the model can make up for, or that is the task
        variant = Shift(answer.form)
        yield rule.finding(
            answer.sentence,
            cause=CAUSES[variant],
            fix=FIXES[variant],
            subject=Subject("loss", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("shift", "share", "fit", "fit as it is")),
            confidence=Confidence.LIKELY,
            variant=variant,
        )
