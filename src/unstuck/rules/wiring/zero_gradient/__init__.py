"""M29: every gradient that an optimizer gets is exactly 0, from its first step to its last."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import TensorGauges
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, objects


class Zero(Variant):
    """Why there is nothing."""

    FACTORS = "factors", "weights that are multiplied with each other are all 0 themselves"
    ALL = "all", "the loss does not change with any of the weights"


rule = Rule(
    code="M29",
    name="zero-gradient",
    title="every gradient that the optimizer gets is exactly 0",
    severity=Severity.ERROR,
    explains=("G09", "G18", "O01", "O07", "O22", "P20", "P21", "P22", "R03", "R08"),
    needs=(TensorGauges,),
    variants=Zero.titles(),
)

FEWEST = 10
"""Steps in which the gradients were measured."""
CAUSES = {
    Zero.FACTORS: "The gradient of one factor of a product is multiplied by the other. Where both are 0, as the two "
    "matrices of a low-rank adapter must not be, neither ever gets a gradient.",
    Zero.ALL: "backward() reaches these weights, and multiplies by 0 on the way: a term with weight 0, a clamp or a "
    "function that is level everywhere, or units that are all dead.",
}
FIXES = {
    Zero.FACTORS: "Draw one of the two at random (`nn.init.kaiming_uniform_(A)`), and begin only the other at 0.",
    Zero.ALL: "Follow the loss from `backward()` down to the first operation whose derivative is 0.",
}


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Each optimizer by itself. A loss of 0 needs no gradient."""
    for optimizer in dict.fromkeys(series.optimizer for series in dynamics.tensors(record)):
        held = [series for series in dynamics.tensors(record) if series.optimizer == optimizer]
        seen = [series for series in held if dynamics.known(series.grad_norm)]
        measured = [dynamics.known(series.grad_norm) for series in seen]
        values = [value for _, value in dynamics.losses(record, optimizer)]
        is_silent = bool(measured) and min(map(len, measured)) >= FEWEST and not any(map(any, measured))
        if not is_silent or not values or not all(values):
            continue
        zeros = [series.name for series in seen if not any(dynamics.known(series.weight_norm))]
        variant = Zero.FACTORS if len(zeros) > 1 else Zero.ALL
        also = f"; {len(zeros)} of them are 0 themselves" if variant is Zero.FACTORS else ""
        yield rule.finding(
            f"All {len(seen)} tensors that {optimizer} trains got a gradient of exactly 0 in each of "
            f"{min(map(len, measured))} measured steps{also}.",
            cause=CAUSES[variant],
            fix=FIXES[variant],
            subject=Subject("optimizer", optimizer),
            place=dynamics.step_place(record),
            related=(dynamics.model_place(record),),
            evidence=[
                Evidence("tensors", objects.listed([series.name for series in seen])),
                Evidence("tensors that are 0", objects.listed(zeros) if zeros else "none"),
                Evidence("loss", values[-1]),
            ],
            variant=variant,
        )
