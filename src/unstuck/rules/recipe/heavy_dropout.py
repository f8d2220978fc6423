"""R20: dropout removes most of the signal, and the loss does not come down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Gauges, LossCall, ModelSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses, objects

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record

rule = Rule(
    code="R20",
    name="heavy-dropout",
    title="dropout removes most of the activations, and the loss does not come down",
    severity=Severity.WARNING,
    explains=("O07", "O22", "R08"),
    needs=(ModelSeen, Gauges),
)

HEAVY = 0.7
"""Papers and libraries use 0.1 to 0.5; from 0.7 on fewer than a third of the activations are left."""
CAUSE = (
    "p is the share that is removed, not the share that is kept. What is left of the signal changes at random from "
    "step to step, and the gradient is mostly this noise."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Layers with a large p in a run whose loss is stuck, or ends where a guess is."""
    trained = losses.trained(record.of(LossCall), ("cross_entropy", "nll_loss", "mse_loss"))
    guesses = any(losses.ends_at_a_guess(calls) for calls in trained)
    stuck = dynamics.trend(record).word in (*dynamics.STUCK, "rising")
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
            cause=CAUSE,
            fix=f"Set p to between 0.1 and 0.5; if {share:g} was meant as the share to keep, pass {1 - share:.2g}.",
            subject=Subject("module", objects.listed([layer.name for layer in heavy])),
            place=model.place,
            evidence=[
                Evidence("layers", objects.listed([layer.name for layer in heavy])),
                Evidence("largest p", share, threshold=HEAVY),
            ],
            confidence=Confidence.LIKELY,
        )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """Train without dropout."""
    from unstuck.interventions import NoDropout

    yield (NoDropout(),)
