"""P04: the same batch gets other answers when it is evaluated again."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject, Variant
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Rule
from unstuck.rules.shared import broken_relations
from unstuck.rules.shared.modes import MEANT_RANDOM


class Unsteady(Variant):
    """Why."""

    DROPOUT = "dropout", "a functional dropout drops values in evaluation mode, too"
    NEW_LAYER = "new-layer", "a layer that is made in forward() has other weights in every call"
    ONLY_IN_EVALUATION = "only-in-evaluation", "noise is added in evaluation mode, and not in training"


rule = Rule(
    code="P04",
    name="unsteady-evaluation",
    title="the same batch gets other answers when it is evaluated again",
    severity=Severity.WARNING,
    explains=("M13",),
    variants=Unsteady.titles(),
)

CAUSE = {
    Unsteady.DROPOUT: "Its training argument is True by default and does not see model.eval().",
    Unsteady.NEW_LAYER: "It is not part of the model: no optimizer trains its weights, and no checkpoint keeps them.",
    Unsteady.ONLY_IN_EVALUATION: "Noise that is meant to make training harder belongs in training mode only. A model "
    "that answers with a draw in evaluation on purpose does the same.",
}
FIX = {
    Unsteady.DROPOUT: "Pass training=self.training, or use an nn.Dropout made in __init__.",
    Unsteady.NEW_LAYER: "Make it once in __init__, before the optimizer is built.",
    Unsteady.ONLY_IN_EVALUATION: "If the draw is not meant, make the condition `if self.training`.",
}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` passed the first batch through the model twice, in evaluation mode."""
    for answer in broken_relations.broken_in(experiment, Relation.STEADY):
        if MEANT_RANDOM.search(str(answer.measures.get("kinds") or "")):
            continue
        variant = Unsteady(answer.form)
        is_certain = variant is not Unsteady.ONLY_IN_EVALUATION
        yield rule.finding(
            answer.sentence,
            cause=CAUSE[variant],
            fix=FIX[variant],
            subject=Subject("model", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, ("change", "function", "layer")),
            severity=Severity.WARNING if is_certain else Severity.ADVICE,
            confidence=Confidence.CERTAIN if is_certain else Confidence.LIKELY,
            variant=variant,
        )
