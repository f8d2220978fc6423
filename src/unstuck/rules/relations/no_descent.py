"""P13: one small step on one batch does not lower the loss of that batch as its gradient promises."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Finding, Severity, Subject, Variant
from unstuck.findings.relations import Relation
from unstuck.findings.results import Experiment
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import broken_relations


class Descent(Variant):
    """Why the loss does not fall."""

    UPHILL = "uphill", "the step goes up the gradient: the loss of its own batch rises"
    FOREIGN_GRADIENT = "foreign-gradient", "the optimizer is given another gradient than that of the loss"
    WRONG_DERIVATIVE = "wrong-derivative", "what backward() computes is not the derivative of the loss"


rule = Rule(
    code="P13",
    name="no-descent",
    title="one small step on one batch does not lower that batch's own loss",
    severity=Severity.ERROR,
    explains=("G04", "G07", "G08", "G10", "M14", "O01", "O07", "O22", "R03", "R08"),
    variants=Descent.titles(),
)

CAUSES = {
    Descent.UPHILL: "The weights are moved along the gradient and not against it, so every step makes the loss larger.",
    Descent.FOREIGN_GRADIENT: "Between backward() and step() the gradients were replaced: they are left over from "
    "another batch or another loss, overwritten, or have the wrong sign.",
    Descent.WRONG_DERIVATIVE: "A part of the loss is differentiated by other rules than it is computed by: a custom "
    "autograd.Function with a wrong backward(), or a term that is cut off by detach() and outweighs the rest.",
}
FIXES = {
    Descent.UPHILL: "Subtract the gradient: p -= lr * p.grad, maximize=False, a positive learning rate.",
    Descent.FOREIGN_GRADIENT: "Look at everything that writes to .grad between backward() and step().",
    Descent.WRONG_DERIVATIVE: "Check each autograd.Function with torch.autograd.gradcheck. A gradient that is reversed "
    "or passed straight through on purpose needs no change.",
}
NAMES = ("optimizer", "rate", "loss", "share", "promised", "real", "cosine", "whole")


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`relations` compared the change of the loss along a step with what its gradient promises."""
    for answer in broken_relations.broken_in(experiment, Relation.DESCENT):
        variant = Descent(answer.form)
        # Only where the loss is known to fall towards the targets is it certain that it should fall.
        is_known = broken_relations.holds_in(experiment, Relation.TARGETS) and variant is not Descent.WRONG_DERIVATIVE
        yield rule.finding(
            answer.sentence,
            cause=CAUSES[variant],
            fix=FIXES[variant],
            subject=Subject("optimizer", answer.subject),
            place=answer.place,
            evidence=broken_relations.evidence(answer, NAMES),
            severity=Severity.ERROR if is_known else Severity.WARNING,
            confidence=Confidence.CERTAIN if is_known else Confidence.LIKELY,
            variant=variant,
        )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """The other sign."""
    from unstuck.interventions import NegateLoss

    if finding.variant == Descent.UPHILL:
        yield (NegateLoss(),)
