"""P27: a straight-through estimator that is written the wrong way round."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import GradientRerouted
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="P27",
    name="reversed-straight-through",
    title="a tensor has the values of one network output and the gradients of another: straight-through reversed",
    severity=Severity.ERROR,
    explains=("O25", "P19", "P20", "P21", "P22", "R03", "R08"),
    needs=(),
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Values that equal an earlier output, made by adding something detached, and cut off from that output."""
    event = next(iter(record.of(GradientRerouted)), None)
    if event is None:
        return
    name = f"{event.module} ({event.kind})" if event.module else event.kind
    yield rule.finding(
        f"At {name} the forward pass hands on the output of {event.source} as it is, but gradients do not go back to "
        "it: they go to what was added and subtracted again.",
        cause="q + (z - q).detach() has the value of z and the gradient of q. A straight-through estimator is the "
        "other way round: it has the value of q, and gives its gradient to z. As it is, nothing is quantized in "
        "training, and the encoder gets no gradient from the loss of the decoder.",
        fix="Write z + (q - z).detach().",
        subject=Subject("module", event.module or event.kind),
        place=event.place,
        evidence=[Evidence("values equal to the output of", event.source)],
    )
