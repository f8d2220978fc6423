"""O09: gradients accumulate over N micro-batches and the loss is not divided by N."""

from __future__ import annotations

from unstuck.events import Backward, OptimizerStep
from unstuck.findings import Finding, Severity, Variant
from unstuck.rule import Remedies, Rule, find_in


class Division(Variant):
    """How the losses of micro-batches are averaged wrongly."""

    NOT_DIVIDED = "not-divided", "the loss is not divided by the number of micro-batches"
    WRONG_DIVISOR = "wrong-divisor", "the loss is divided by a number other than that of the micro-batches"
    UNEQUAL_MICRO_BATCHES = "unequal-micro-batches", "micro-batches of very different sizes count the same"


rule = Rule(
    code="O09",
    name="accumulation-not-divided",
    title="gradient accumulation without dividing the loss by the number of micro-batches",
    severity=Severity.ERROR,
    explains=("G05", "G08", "G10", "G18", "M14", "O07", "O22", "O25", "R08"),
    needs=(Backward, OptimizerStep),
    variants=Division.titles(),
)

EVERY = "backward passes for each step"
"""The evidence that the remedy needs."""
SCALE_FREE = frozenset(
    "Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop Rprop SparseAdam Adafactor Lion Lamb LAMB AdaBelief "
    "RAdamW Muon SophiaG".split()
)
"""Optimizers that divide by the size of the gradients, so that a constant factor cancels out."""

rule.in_source(find_in("unstuck.rules.convergence.accumulation_not_divided.source"))
rule.in_run(find_in("unstuck.rules.convergence.accumulation_not_divided.run"))


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Divide the loss by the number of micro-steps."""
    from unstuck.interventions import DivideLoss

    every = finding.number(EVERY)
    if every and every > 1:
        yield (DivideLoss(every),)


def harm(optimizers: set[str], clips: bool, every: object) -> tuple[str, Severity]:
    """What a sum of N gradients does to these optimizers, and how severe that is."""
    if not optimizers or not optimizers <= SCALE_FREE:
        cause = (
            f"backward() adds to the gradients, so a step applies the sum of {every} mean losses: its gradient is "
            f"{every} times that of one large batch, which acts like a learning rate {every} times as large."
        )
        return cause, Severity.WARNING
    if clips:
        cause = (
            f"backward() adds to the gradients, so clipping sees the sum of {every} and cuts {every} times as early."
        )
        return cause, Severity.WARNING
    cause = (
        f"backward() adds to the gradients. {min(optimizers)} divides a constant factor out, so updates barely change, "
        "but eps, logged gradient norms and any later clipping or change of optimizer are affected."
    )
    return cause, Severity.ADVICE


def wrong_divisor(every: int, divisor: int) -> str:
    """The cause, with the factor that is left."""
    return (
        f"A step applies the sum of {every} gradients, each divided by {divisor}: {every / divisor:g} times that of "
        "one large batch."
    )
