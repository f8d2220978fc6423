"""R18: dropout, weight decay or gradient clipping so strong that the run does not learn; without it, it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.rule import Rule
from unstuck.rules.shared import held_back

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment
    from unstuck.interventions import Intervention


class Strength(Variant):
    """What is too strong."""

    DROPOUT = "dropout", "too much is dropped for anything to be learned"
    WEIGHT_DECAY = "weight-decay", "weight decay shrinks the weights faster than they are learned"
    CLIPPING = "clipping", "gradients are clipped so far down that the weights hardly move"


rule = Rule(
    code="R18",
    name="over-regularized",
    title="dropout, weight decay or clipping so strong that the run learns only without it",
    severity=Severity.ERROR,
    explains=("G04", "M13", "O07", "O22", "O26", "R08"),
    variants=Strength.titles(),
)

PARTS = {"dropout": Strength.DROPOUT, "weight decay": Strength.WEIGHT_DECAY, "clipping": Strength.CLIPPING}
CAUSES = {
    Strength.DROPOUT: "What is left of the signal after dropout is mostly noise, and its gradients are too.",
    Strength.WEIGHT_DECAY: "Every step pulls the weights towards 0 harder than the gradient pushes them anywhere else.",
    Strength.CLIPPING: "The gradient is scaled down at every step, and with plain SGD the steps shrink as much.",
}
FIXES = {
    Strength.DROPOUT: "Lower it to 0.1 or 0.2, or remove it until the run overfits.",
    Strength.WEIGHT_DECAY: "Set it to 0 until the run learns; 0.01 to 0.1 is usual for AdamW, 1e-4 for SGD.",
    Strength.CLIPPING: "Remove the clipping, or set its limit near the usual norm of the gradients, such as 1.",
}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`ablate` showed that the run learns without one of them, and only without."""
    variant = PARTS.get(held_back.part_of(experiment))
    if variant is None:
        return
    yield rule.finding(
        experiment.sentence,
        cause=CAUSES[variant],
        fix=FIXES[variant],
        subject=Subject("loop", held_back.part_of(experiment)),
        place=experiment.place,
        evidence=[*held_back.evidence(experiment), Evidence("compared", experiment.method)],
        variant=variant,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """Without it."""
    from unstuck.interventions import NoClipping, NoDropout, NoWeightDecay

    changes = {
        Strength.DROPOUT: NoDropout(),
        Strength.WEIGHT_DECAY: NoWeightDecay(),
        Strength.CLIPPING: NoClipping(),
    }
    yield (changes[Strength(finding.variant)],)
