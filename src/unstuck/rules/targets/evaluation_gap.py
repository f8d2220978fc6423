"""P33: what a run learns does not carry over to its evaluation, though it may to new examples of its training data."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule


class Apart(Variant):
    """Where it stops."""

    EVALUATION = "evaluation", "new training examples are answered well, and those of the evaluation are not"
    MEMORIZED = "memorized", "not even new examples of the training data are answered well"


rule = Rule(
    code="P33",
    name="evaluation-gap",
    title="what the run learns does not carry over to its evaluation",
    severity=Severity.WARNING,
    explains=("M13",),
    variants=Apart.titles(),
)

CAUSES = {
    Apart.EVALUATION: (
        "New examples from the training data, through the training code, differ from known ones only in being new, and "
        "they are answered well. So it is not overfitting: inputs or labels of the evaluation are prepared in another "
        "way, the model is used in another way there, or its examples come from somewhere else."
    ),
    Apart.MEMORIZED: (
        "The examples that were kept out come from the same data, by the same code. What the model learns are single "
        "examples: there are too few, they are duplicates, or nothing in the inputs says what their targets are."
    ),
}
FIXES = {
    Apart.EVALUATION: (
        "Give one training example to the evaluation code and compare what the model receives in both, number by "
        "number. Build vocabularies, label numbers, scalers and caches once, from the training data, and use them for "
        "all splits; check the mode, the weights, and what the answers are compared with."
    ),
    Apart.MEMORIZED: (
        "Check on a few examples by eye that inputs and targets belong together. If they do: more data or "
        "augmentation, a smaller model, weight decay, dropout, or stop earlier."
    ),
}
VARIANTS = {ExperimentVerdict.APART: Apart.EVALUATION, ExperimentVerdict.MEMORIZED: Apart.MEMORIZED}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`gap` compared known examples, new ones and the evaluation."""
    variant = VARIANTS.get(experiment.verdict)
    if experiment.name != "gap" or variant is None or experiment.table is None:
        return
    yield rule.finding(
        experiment.sentence,
        cause=CAUSES[variant],
        fix=FIXES[variant],
        subject=Subject("loop", "evaluation"),
        place=experiment.place,
        evidence=[Evidence(str(row[0]), str(row[1])) for row in experiment.table.rows],
        confidence=Confidence.LIKELY,
        variant=variant,
    )
