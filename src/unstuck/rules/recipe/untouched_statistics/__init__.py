"""R29: a model is evaluated with batch norms whose statistics are those of a new layer."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import StatisticsUntouched
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects

rule = Rule(
    code="R29",
    name="untouched-statistics",
    title="a model is evaluated with batch norms whose running statistics never changed",
    severity=Severity.ERROR,
    explains=("M13", "P02"),
    needs=(),
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """From the last evaluation that each model was seen in."""
    last = {event.model: event for event in record.of(StatisticsUntouched)}
    for event in last.values():
        yield rule.finding(
            f"{event.model} is evaluated with running statistics that no batch has changed: mean 0 and variance 1 in "
            f"{len(event.layers)} of its {event.batch_norms} batch norms ({objects.listed(event.layers)}); their "
            "weights are not those of new layers.",
            cause="In evaluation mode a batch norm divides by its running statistics. An average of weights, a copy or "
            "a loaded state that leaves out the buffers keeps those of a new layer, so the answers mean nothing.",
            fix="Copy the buffers too: for a, b in zip(ema.buffers(), model.buffers()): a.copy_(b); or use "
            "torch.optim.swa_utils.update_bn(loader, ema).",
            subject=Subject("model", event.model),
            place=event.place,
            evidence=[
                Evidence("batch norms with untouched statistics", f"{len(event.layers)} of {event.batch_norms}"),
                Evidence("evaluations seen", event.looks),
            ],
        )
