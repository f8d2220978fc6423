"""O02: parameters that should train but are in no optimizer."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.events import ModelSeen, OptimizerSeen, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.record import Record
from unstuck.rule import Rule, find_in, with_change


class Missing(Variant):
    """Why parameters are not trained."""

    NEVER_GIVEN = "never-given", "trainable parameters are given to no optimizer"
    REPLACED_LATER = "replaced-later", "layers were replaced after the optimizer was built"
    UNFROZEN_LATER = "unfrozen-later", "layers were unfrozen after the optimizer was built"
    UNREGISTERED = "unregistered", "the model does not register its layers, so parameters() does not return them"
    CREATED_IN_FORWARD = "created-in-forward", "a layer is created inside forward()"
    ALL_FROZEN = "all-frozen", "every parameter is frozen"
    EMPTY_LIST = "empty-list", "the optimizer was given no parameters"
    STEP_WITHOUT_EFFECT = "step-without-effect", "the optimizer's step() does not change its parameters"


rule = Rule(
    code="O02",
    name="params-not-in-optimizer",
    title="parameters that should train but are in no optimizer",
    severity=Severity.ERROR,
    explains=("O01", "O03", "O07", "O22", "P04", "P21", "R03", "R08"),
    needs=(ModelSeen, OptimizerSeen),
    variants=Missing.titles(),
)

ALL_FROZEN = (
    "With requires_grad=False everywhere there is no gradient to compute and nothing for the optimizer to update."
)

rule.in_source(find_in("unstuck.rules.convergence.params_not_in_optimizer.source"))


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """The parameters of the models against those of the optimizers, and the effect of one step."""
    from unstuck.rules.convergence.params_not_in_optimizer import tensors

    return tensors.in_setup(setup)


@rule.in_run
def in_run(record: Record) -> Iterable[Finding]:
    """Parameters that got gradients and never moved, optimizers with stale tensors, nothing to train at all."""
    from unstuck.rules.convergence.params_not_in_optimizer import tensors

    return tensors.in_run(record)


rule.remedied_by(with_change("AddParameters"))
