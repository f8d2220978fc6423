"""R27: weights that were loaded are overwritten before training begins."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import LoadedLost
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="R27",
    name="loaded-weights-lost",
    title="weights that were loaded are overwritten before the first step",
    severity=Severity.ERROR,
    explains=("M14", "O07", "O22", "R01", "R08"),
    needs=(LoadedLost,),
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """An optimizer's first step finds other weights than those that were loaded."""
    for event in record.of(LoadedLost):
        yield rule.finding(
            f"The weights that were loaded into {event.model} are gone when {event.optimizer} takes its first step: "
            f"{event.changed} of the {event.tensors} largest are others.",
            cause="Something that runs after load_state_dict() writes them again, such as model.apply(init_weights) or "
            "reset_parameters(). Training begins with random weights, with the optimizer and the schedule of a trained "
            "network if these were loaded too.",
            fix="Initialise first and load afterwards.",
            subject=Subject("model", event.model),
            place=event.place,
            evidence=[
                Evidence("weights that changed", f"{event.changed} of {event.tensors}"),
                Evidence("correlation with what was loaded", event.alike if event.alike is not None else 0.0),
            ],
        )
