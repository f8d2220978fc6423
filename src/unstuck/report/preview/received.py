"""What stands out in the data of a run, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.events import ModelSeen, TensorGauges, TensorsNamed

if TYPE_CHECKING:
    from pathlib import Path

    from unstuck.record import Record

FEWEST = 3
"""Measured steps from which on something that never came is worth a word."""


def unreached(record: Record) -> tuple[str, ...]:
    """A sentence for each optimizer that holds parameters no gradient ever came to, beside others that learn."""
    frozen = {fact.name for seen in record.of(ModelSeen) for fact in seen.parameters if not fact.trainable}
    named = {event.optimizer: event.names for event in record.of(TensorsNamed)}
    found = []
    for optimizer, names in named.items():
        gauges = [event.grad_norm for event in record.of(TensorGauges) if event.optimizer == optimizer]
        columns = list(zip(*gauges, strict=False)) if len(gauges) >= FEWEST else []
        without = [name for name, norms in zip(names, columns, strict=False) if all(norm is None for norm in norms)]
        missing = [name for name in without if name not in frozen]
        if missing and len(missing) < len(names):
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            found.append(f"{len(missing)} of the {len(names)} parameters of {optimizer} never had a gradient: {some}.")
    return tuple(found)


def exhibit_sentences(folder: Path) -> tuple[str, ...]:
    """What stands out in the data that an investigation kept: copies, classes, predictions. A sentence each."""
    from unstuck.events.preview import read_table
    from unstuck.report.preview.exhibited import prediction_sentences, table_sentences, target_sentence

    table = read_table(folder)
    if table is None:
        return ()
    counts = (target_sentence(table.target),) if table.target is not None and table.target.counts else ()
    return (*table_sentences(table), *counts, *prediction_sentences(table))
