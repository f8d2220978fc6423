"""R20: dropout, weight decay or gradient clipping so strong that the run does not learn; without it, it does."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Gauges, LossCall, ModelSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.results import Experiment, RecipePart
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import dynamics, held_back, losses, objects


class Strength(Variant):
    """What is too strong."""

    DROPOUT = "dropout", "too much is dropped for anything to be learned"
    WEIGHT_DECAY = "weight-decay", "weight decay shrinks the weights faster than they are learned"
    CLIPPING = "clipping", "gradients are clipped so far down that the weights hardly move"


rule = Rule(
    code="R20",
    name="over-regularized",
    title="dropout, weight decay or clipping so strong that the run learns only without it",
    severity=Severity.ERROR,
    explains=("G04", "M13", "O07", "O22", "O26", "R08"),
    variants=Strength.titles(),
    needs=(ModelSeen, Gauges),
)

HEAVY = 0.7
"""Papers and libraries use 0.1 to 0.5; from 0.7 on fewer than a third of the activations are left."""

PARTS = {
    RecipePart.DROPOUT: Strength.DROPOUT,
    RecipePart.WEIGHT_DECAY: Strength.WEIGHT_DECAY,
    RecipePart.CLIPPING: Strength.CLIPPING,
}
CAUSES = {
    Strength.DROPOUT: (
        "What is left of the signal after dropout changes at random from step to step, and the gradient is "
        "mostly this noise. p is the share that is removed, not the share that is kept."
    ),
    Strength.WEIGHT_DECAY: "Every step pulls the weights towards 0 harder than the gradient pushes them anywhere else.",
    Strength.CLIPPING: "The gradient is scaled down at every step, and with plain SGD the steps shrink as much.",
}
FIXES = {
    Strength.DROPOUT: "Lower it to 0.1 or 0.2, or remove it until the run overfits.",
    Strength.WEIGHT_DECAY: "Set it to 0 until the run learns; 0.01 to 0.1 is usual for AdamW, 1e-4 for SGD.",
    Strength.CLIPPING: "Remove the clipping, or set its limit near the usual norm of the gradients, such as 1.",
}


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Layers with a large p in a run whose loss is stuck, or ends where a guess is."""
    trained = losses.trained(record.of(LossCall), ("cross_entropy", "nll_loss", "mse_loss"))
    guesses = any(losses.ends_at_a_guess(calls) for calls in trained)
    stuck = dynamics.trend(record).word in (*dynamics.STUCK, Direction.RISING)
    if dynamics.alternating(record) or not (stuck or guesses):
        return
    for model in record.setup().models:
        heavy = [layer for layer in model.modules if "Dropout" in layer.kind and HEAVY <= layer.numbers.get("p", 0) < 1]
        if not heavy:
            continue
        share = max(layer.numbers["p"] for layer in heavy)
        consequence = "ends where a guess would" if guesses else f"is {dynamics.trend(record).word}"
        yield rule.finding(
            f"{objects.counted(len(heavy), 'dropout layer')} of {model.model} removes up to {share:.0%} of the "
            f"activations (p={share:g}), and the loss {consequence}.",
            cause=CAUSES[Strength.DROPOUT],
            fix=f"Set p to between 0.1 and 0.5; if {share:g} was meant as the share to keep, pass {1 - share:.2g}.",
            subject=Subject("module", objects.listed([layer.name for layer in heavy])),
            place=model.place,
            evidence=[
                Evidence("layers", objects.listed([layer.name for layer in heavy])),
                Evidence("largest p", share, threshold=HEAVY),
            ],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Strength.DROPOUT,
        )


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`ablate` showed that the run learns without one of them, and only without."""
    part = held_back.part_of(experiment)
    variant = PARTS.get(part) if part else None
    if variant is not None:
        yield held_back.finding_of(rule, experiment, CAUSES[variant], FIXES[variant], variant)


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Without it."""
    from unstuck.interventions import NoClipping, NoDropout, NoWeightDecay

    changes = {
        Strength.DROPOUT: NoDropout(),
        Strength.WEIGHT_DECAY: NoWeightDecay(),
        Strength.CLIPPING: NoClipping(),
    }
    yield (changes[Strength(finding.variant)],)
