"""O04: zero_grad, backward and step in an order that loses the gradients, or one of them missing."""

from __future__ import annotations

from unstuck.events import Backward
from unstuck.findings import Finding, Severity, Variant
from unstuck.rule import Remedies, Rule, find_in


class Order(Variant):
    """The ways in which gradients are lost, or added up."""

    NEVER_CLEARED = "never-cleared", "gradients are never cleared"
    CLEARED_TOO_LATE = "cleared-too-late", "zero_grad() runs between backward() and step()"
    STEP_BEFORE_BACKWARD = "step-before-backward", "step() runs before backward()"
    GRADIENTS_REMOVED = "gradients-removed", "something between backward() and step() removes the gradients"
    NO_STEP = "no-step", "step() is never called"
    NO_BACKWARD = "no-backward", "backward() is never called"


rule = Rule(
    code="O04",
    name="step-order",
    title="zero_grad, backward and step out of order, or one of them missing",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "M14", "O01", "O03", "O07", "O22", "O25", "O26", "R08"),
    needs=(Backward,),
    variants=Order.titles(),
)

RIGHT_ORDER = "The order is zero_grad, forward, loss, backward, step."
CAUSES = {
    Order.NEVER_CLEARED: "backward() adds to .grad, so every step applies the sum of all batches since the start.",
    Order.CLEARED_TOO_LATE: "zero_grad() clears the gradients that backward() has just computed, so step() has nothing "
    "to apply.",
    Order.STEP_BEFORE_BACKWARD: "step() runs on gradients that have just been cleared, so it has nothing to apply.",
    Order.GRADIENTS_REMOVED: "Something between backward() and step() removes the gradients, so step() has nothing to "
    "apply.",
    Order.NO_STEP: "backward() only computes gradients; without step() no weight ever changes.",
    Order.NO_BACKWARD: "zero_grad() leaves every .grad empty, and step() skips parameters without a gradient, so no "
    "weight ever changes.",
}
FIXES = {
    Order.CLEARED_TOO_LATE: f"Move zero_grad() before backward() or after step(). {RIGHT_ORDER}",
    Order.STEP_BEFORE_BACKWARD: f"Move step() after backward(). {RIGHT_ORDER}",
}

rule.in_source(find_in("unstuck.rules.convergence.step_order.source"))
rule.in_run(find_in("unstuck.rules.convergence.step_order.run"))


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Clear the gradients, keep them, or step, whichever is missing."""
    from unstuck.interventions import ClearGradients, KeepGradients, TakeSteps

    match finding.variant:
        case Order.CLEARED_TOO_LATE | Order.STEP_BEFORE_BACKWARD:
            yield (KeepGradients(),)
        case Order.NEVER_CLEARED:
            yield (ClearGradients(),)
        case Order.NO_STEP:
            yield (TakeSteps(),)
