"""What models received in training, in a line or three: the only place where data can be seen as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.events import BatchSeen, InputFact, ModelSeen, TensorGauges, TensorsNamed

if TYPE_CHECKING:
    from pathlib import Path

    from unstuck.record import Record

MOST_LINES = 3
FEWEST = 3
"""Measured steps from which on something that never came is worth a word."""


def received(record: Record) -> tuple[str, ...]:
    """A sentence for each input of the first batch that each model was told to receive."""
    first: dict[str, BatchSeen] = {}
    for batch in record.of(BatchSeen):
        if batch.model:
            first.setdefault(batch.model, batch)
    return tuple(
        f"{model} received {described(fact)}." for model, batch in first.items() for fact in batch.inputs[:MOST_LINES]
    )[:MOST_LINES]


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


def described(fact: InputFact) -> str:
    """`x: float32 [32, 3, 8, 8] from 0 to 1, half of it between 0.25 and 0.75`."""
    words = f"{fact.name}: {fact.dtype} {list(fact.shape or ())}"
    if fact.low is not None and fact.high is not None:
        words += f" from {fact.low:.4g} to {fact.high:.4g}"
    if len(fact.quantiles) == 5 and "float" in fact.dtype:
        words += f", half of it between {fact.quantiles[1]:.3g} and {fact.quantiles[3]:.3g}"
    return f"{words}, {fact.broken:.2%} of it not finite" if fact.broken else words


def exhibit_sentences(folder: Path) -> tuple[str, ...]:
    """What stands out in the data that an investigation kept: copies, classes, predictions. A sentence each."""
    from unstuck.exhibits import read_table
    from unstuck.report.exhibited import prediction_sentences, table_sentences, target_sentence

    table = read_table(folder)
    if table is None:
        return ()
    counts = (target_sentence(table.target),) if table.target is not None and table.target.counts else ()
    return (*table_sentences(table), *counts, *prediction_sentences(table))
