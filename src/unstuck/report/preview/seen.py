"""What a run has shown of its data, put on the table from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unstuck.events import BatchShown, FiltersShown, LossCall, Predicted
from unstuck.events.preview import Dynamics, FirstLayer, Snapshot, Table, TargetShown

if TYPE_CHECKING:
    from unstuck.record import Record


def tables_of(record: Record) -> tuple[Table, ...]:
    """One for each model whose first batch was shown, in the order in which they were called."""
    first: dict[str, BatchShown] = {}
    for event in record.of(BatchShown):
        first.setdefault(event.model, event)
    target = _target(record)
    return tuple(
        Table(
            model=model,
            tensors=event.tensors,
            class_names=event.class_names,
            target=target if index == 0 else None,
            first_layer=_first_layer([one for one in record.of(FiltersShown) if one.model == model]),
            dynamics=_dynamics([one for one in record.of(Predicted) if one.model == model]),
        )
        for index, (model, event) in enumerate(first.items())
    )


def _first_layer(looks: Sequence[FiltersShown]) -> FirstLayer | None:
    if not looks:
        return None
    first, last = looks[0], looks[-1]
    if first.filters is None or last.filters is None:
        return None
    return FirstLayer(
        name=first.layer, kind=first.kind, count=first.count, start=first.filters, end=last.filters, moved=last.moved
    )


def _dynamics(looks: Sequence[Predicted]) -> Dynamics | None:
    """Of the batch that was looked at most often."""
    if not looks:
        return None
    often = Counter((one.batch, one.kind, len(one.values)) for one in looks).most_common(1)[0][0]
    of_batch = [one for one in looks if (one.batch, one.kind, len(one.values)) == often]
    last = of_batch[-1]
    return Dynamics(
        kind=last.kind,
        classes=last.classes,
        targets=last.targets,
        snapshots=tuple(Snapshot(one.step, one.values, one.confidence) for one in of_batch),
        training_mode=last.training_mode,
        batch="a training batch that came again" if last.learning else "the first batch of the evaluations",
        asked=False,
    )


def _target(record: Record) -> TargetShown | None:
    """What the first loss in training was given to compare with, and its classes over the calls on record."""
    calls = [call for call in record.of(LossCall) if call.output_requires_grad]
    fact = calls[0].target if calls else None
    if fact is None:
        return None
    found = [call.target.classes for call in calls if call.loss == calls[0].loss and call.target]
    classes = [one for one in found if one is not None and "float" not in fact.dtype]
    whole = all(one.distinct == len(one.counts) for one in classes)
    counts = sum((Counter(one.counts) for one in classes), Counter()) if whole else Counter()
    return TargetShown(
        loss=calls[0].loss,
        dtype=fact.dtype,
        shape=tuple(fact.shape),
        low=fact.low,
        high=fact.high,
        mean=fact.mean,
        counts={str(label): counts[label] for label in sorted(counts)},
        batches=len(classes),
    )
