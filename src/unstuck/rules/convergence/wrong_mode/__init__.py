"""O05: training in eval mode, evaluating in train mode, or dropout that ignores the mode."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.events import Forward, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.rule import Remedies, Rule, find_in


class Mode(Variant):
    """Which mode is wrong, and when."""

    STAYS_IN_EVAL = "stays-in-eval", "after an evaluation, training continues in eval mode"
    STARTS_IN_EVAL = "starts-in-eval", "training starts in eval mode"
    EVALUATED_IN_TRAIN = "evaluated-in-train", "the model is evaluated in train mode"
    DROPOUT_ALWAYS_ON = "dropout-always-on", "dropout stays on in eval mode"


rule = Rule(
    code="O05",
    name="wrong-mode",
    title="training in eval mode, evaluating in train mode, or dropout that ignores the mode",
    severity=Severity.ERROR,
    explains=("O01", "O07", "M13", "P04", "R08"),
    needs=(Forward,),
    only_in_text=("call",),
    variants=Mode.titles(),
)

rule.in_source(find_in("unstuck.rules.convergence.wrong_mode.source"))
rule.in_run(find_in("unstuck.rules.convergence.wrong_mode.run"))


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """A model to train that is entirely in eval mode, or dropout that stays on in eval mode."""
    from unstuck.rules.convergence.wrong_mode.setup import find

    return find(setup)


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Put the model into train mode; the other variants do not change the training."""
    from unstuck.interventions import TrainingMode

    if finding.variant in (Mode.STAYS_IN_EVAL, Mode.STARTS_IN_EVAL):
        yield (TrainingMode(),)


def effect_of_eval(layer: str) -> str:
    """What eval mode does to training, for the class of a layer or of a model that contains one."""
    if "Norm" in layer:
        return f"In eval mode {layer} uses its stored statistics and no longer updates them."
    if "Dropout" in layer:
        return f"In eval mode {layer} drops nothing, so it no longer regularizes."
    return f"In eval mode the Dropout in {layer} drops nothing and BatchNorm uses its stored statistics."


def effect_of_train(layer: str) -> str:
    """What train mode does to an evaluation."""
    if "Norm" in layer:
        return f"In train mode {layer} uses the statistics of the batch and updates its stored ones."
    if "Dropout" in layer:
        return f"In train mode {layer} drops units at random, so the same input gives different outputs."
    return f"In train mode the Dropout in {layer} drops units at random and BatchNorm uses the statistics of the batch."
