"""P10: targets that the model cannot output, whatever its weights are."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Severity, Subject, Variant
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations


class Reach(Variant):
    """What is out of reach."""

    OUTSIDE = "outside", "targets outside of what the output can be"
    ONE_CLASS = "one-class", "scores of a single class, whose probability is always 1"
    NOT_PROBABILITIES = "not-probabilities", "targets of a binary cross entropy outside of 0 to 1"


rule = Rule(
    code="P10",
    name="unreachable-output",
    title="targets that the model cannot output, whatever its weights are",
    severity=Severity.ERROR,
    explains=("O01", "O07", "R08", "M07", "O25", "G09"),
    variants=Reach.titles(),
)

CAUSES = {
    Reach.OUTSIDE: "The last operation limits the output: a sigmoid, tanh, ReLU, softmax, clamp or normalization.",
    Reach.ONE_CLASS: "A softmax over one score is 1 whatever the score is, so no gradient flows.",
    Reach.NOT_PROBABILITIES: "Binary cross entropy expects 0 and 1, or something in between. Other targets push scores "
    "towards infinity.",
}
FIXES = {
    Reach.OUTSIDE: "Drop the last activation, or bring the targets into its range.",
    Reach.ONE_CLASS: "Output one score per class, or use BCEWithLogitsLoss with one score.",
    Reach.NOT_PROBABILITIES: "Convert the targets to 0 and 1: (target > 0).float() for -1 and 1.",
}
NAMES = ("lowest", "highest", "lowest target", "highest target", "share", "classes")
MOST = 0.25
"""The share of targets out of reach from which the run is wrong and not only worse than it could be."""


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` pushed the weights to all sides and compared what comes out with the targets."""
    for answer in broken_relations.broken_in(experiment, Relation.REACH):
        variant = Reach(answer.form)
        share = answer.measures.get("share")
        most = variant is Reach.ONE_CLASS or (isinstance(share, float) and share >= MOST)
        yield rule.finding(
            answer.sentence,
            cause=CAUSES[variant],
            fix=FIXES[variant],
            subject=Subject("loss", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, NAMES),
            severity=Severity.ERROR if most else Severity.WARNING,
            variant=variant,
        )
