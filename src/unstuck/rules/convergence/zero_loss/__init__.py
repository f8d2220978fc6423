"""O31: the loss is exactly 0 from the start, so there is no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Backward, OptimizerStep
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="O31",
    name="zero-loss",
    title="the loss is exactly 0 from the start, so nothing is learned",
    severity=Severity.ERROR,
    explains=("G09", "O01", "O07", "O22", "R03", "R08"),
    needs=(Backward, OptimizerStep),
)

FEWEST = 20
START = 20
MOSTLY = 0.9


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Nearly all losses are exactly 0, those of the first steps among them. One that gets there has learned."""
    values = [value for _, value in record.losses]
    zeros = sum(value == 0 for value in values)
    first = sorted(abs(value) for value in values[:START])
    if len(values) < FEWEST or zeros < MOSTLY * len(values) or first[len(first) // 2] > 0:
        return
    norms = [step.grad_norm for step in record.of(OptimizerStep) if step.grad_norm is not None]
    if not norms or sum(norm == 0 for norm in norms) < MOSTLY * len(norms):
        return  # a loss can be 0 and have a gradient, such as x - x.detach()
    places = [backward.place for backward in record.of(Backward) if backward.place is not None]
    yield rule.finding(
        f"The loss is exactly 0 in {zeros:,} of {len(values):,} steps, from the start, and so is its gradient.",
        cause="A loss that is cut off at 0 (relu, clamp, max) or masked is 0 while its limit is not reached: with a "
        "margin that is subtracted instead of added, distances the wrong way round, or a mask that leaves nothing.",
        fix="Print the terms of the loss for one batch. In a triplet loss the margin is added: "
        "relu(d_positive - d_negative + margin). In a masked one, check that the mask is not empty.",
        subject=Subject("loss", "loss"),
        place=max(places, key=places.count) if places else None,
        evidence=[
            Evidence("losses of exactly 0", f"{zeros:,} of {len(values):,}"),
            Evidence("largest loss", max(map(abs, values))),
            Evidence("steps with a gradient of 0", f"{sum(norm == 0 for norm in norms):,} of {len(norms):,} measured"),
        ],
    )
