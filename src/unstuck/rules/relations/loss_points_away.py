"""P11: moving predictions towards their targets raises the loss, or leaves it as it is."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject, Variant
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations


class Direction(Variant):
    """Where the loss pulls predictions."""

    AWAY = "away", "the loss falls if predictions move away from their targets"
    INVERTED_MASK = "inverted-mask", "only padded positions count in the loss"
    ONE_SIDED = "one-sided", "only one of the two answers counts in the loss"
    FLAT = "flat", "the loss does not depend on the predictions that it compares"


rule = Rule(
    code="P11",
    name="loss-points-away",
    title="moving predictions towards their targets does not lower the loss",
    severity=Severity.ERROR,
    explains=("G04", "G07", "G08", "G10", "M14", "O01", "O07", "O22", "R03", "R08"),
    variants=Direction.titles(),
)

CAUSES = {
    Direction.AWAY: "Training makes the loss smaller and so the predictions worse: the loss has the wrong sign, or its "
    "weights are negative.",
    Direction.INVERTED_MASK: "The mask keeps what it should drop: the model is trained on padding and never on data.",
    Direction.ONE_SIDED: "A mask or weights drop one of the two answers, as `target > 0` does where 0 is an answer and "
    "not a missing value. To give the other one everywhere then costs nothing, and that is what is learned.",
    Direction.FLAT: "What is compared does not reach the loss that is back-propagated: it is masked, clamped or "
    "multiplied by 0.",
}
FIXES = {
    Direction.AWAY: "Remove the minus in front of the loss (or the 1 - loss), and check the signs of its weights.",
    Direction.INVERTED_MASK: "Invert the mask: count positions where target != padding.",
    Direction.ONE_SIDED: "Mask by what marks a missing answer: `target >= 0` if that is -1, `~target.isnan()` if NaN.",
    Direction.FLAT: "Follow the loss from the comparison to backward(), and print the mask or weight on the way.",
}
NAMES = ("loss", "examples", "counted", "away", "slope", "value")


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` differentiated the loss along the way from predictions to targets."""
    for answer in broken_relations.broken_in(experiment, Relation.TARGETS):
        variant = Direction(answer.form)
        is_certain = variant is Direction.INVERTED_MASK or bool(answer.measures.get("even"))
        yield rule.finding(
            answer.sentence,
            cause=CAUSES[variant],
            fix=FIXES[variant],
            subject=Subject("loss", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, NAMES),
            severity=Severity.WARNING if variant is Direction.FLAT else Severity.ERROR,
            confidence=Confidence.CERTAIN if is_certain else Confidence.LIKELY,
            variant=variant,
        )
