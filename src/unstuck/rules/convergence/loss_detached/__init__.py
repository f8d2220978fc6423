"""O03: the tensor that backward() is called on has been cut off the graph, so no parameter gets a gradient."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.events import Backward, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.rule import Rule, find_in


class Detached(Variant):
    """Where the graph is lost."""

    NO_GRAD = "no-grad", "the forward pass runs without recording gradients"
    CUT = "cut", "an operation before backward() cuts the graph"
    METRIC = "metric", "backward() is called on a metric, which has no gradient"
    REQUIRES_GRAD_BY_HAND = "requires-grad-by-hand", "requires_grad_() hides that the graph was cut"
    PLAIN_NUMBER = "plain-number", "backward() is called on a number instead of a tensor"
    CUT_IN_MODEL = "cut-in-model", "layers before a cut inside the model get no gradient"
    UNUSED_PARAMETERS = "unused-parameters", "the loss does not depend on some parameters"
    OPTIMIZER_NOT_REACHED = "optimizer-not-reached", "no backward() reaches the parameters of one optimizer"


rule = Rule(
    code="O03",
    name="loss-detached",
    title="the loss is detached from the graph before backward()",
    severity=Severity.ERROR,
    explains=("G09", "G18", "O01", "O07", "O22", "P21", "P22", "R03", "R08"),
    needs=(Backward,),
    variants=Detached.titles(),
)

CAUSE = "Past the cut there is no path back to the parameters, so they get no gradient and cannot learn."
OUTSIDE_NO_GRAD = "Run the training forward pass outside no_grad()/inference_mode(); use those only for evaluation."
CUT_IN_MODEL_FIX = (
    "Remove what cuts the graph between these layers and the loss (detach(), .data, numpy(), no_grad(), argmax). If it "
    "is intended, freeze them with requires_grad_(False)."
)

rule.in_source(find_in("unstuck.rules.convergence.loss_detached.source"))
rule.in_run(find_in("unstuck.rules.convergence.loss_detached.run"))


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """The loss of the probed batch has no graph, or one without some of the layers."""
    from unstuck.rules.convergence.loss_detached.setup import find

    return find(setup)
