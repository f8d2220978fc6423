"""The data of a run for a person to look at, put together from its record: inputs, targets, filters, predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import (
    BatchShown,
    Filters,
    FiltersShown,
    LossCall,
    Predicted,
    PredictionKind,
    TensorShown,
)

if TYPE_CHECKING:
    from unstuck.record import Record


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """What the first call of a loss compared the output with."""

    loss: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    counts: dict[str, int] = {}
    """How often each class came, over the calls that were counted."""
    batches: int = 0
    """How many calls were counted."""


class FirstLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The layer that receives the pictures, before training and at the end."""

    name: str
    kind: str
    count: int
    start: Filters
    end: Filters
    moved: float | None = None
    """The norm of the change as a share of the norm at the start."""


class Snapshot(msgspec.Struct, frozen=True):
    """What the model predicts after this many steps, a number for each example."""

    step: int
    values: tuple[float | None, ...]


class Dynamics(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions for one batch over the run."""

    kind: PredictionKind
    targets: tuple[float | None, ...] = ()
    """In the unit of the values, where each example has one."""
    snapshots: tuple[Snapshot, ...] = ()
    training_mode: bool = True
    batch: str = "the first batch"
    asked: bool = True
    """We called the model for this, with the same dropout each time; else the program called it."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to look at for one model."""

    model: str = ""
    tensors: tuple[TensorShown, ...] = ()
    targets: Targets | None = None
    class_names: tuple[str, ...] = ()
    first_layer: FirstLayer | None = None
    dynamics: Dynamics | None = None
    trouble: str = ""
    """Why the model could not be asked for its predictions any more."""


def previews_of(record: Record) -> tuple[Preview, ...]:
    """One for each model whose first batch is on record, in the order in which the models were called."""
    first: dict[str, BatchShown] = {}
    for event in record.of(BatchShown):
        first.setdefault(event.model, event)
    targets = _targets(record) if first else None
    previews: list[Preview] = []
    for model, event in first.items():
        predictions = [one for one in record.of(Predicted) if one.model == model]
        previews.append(
            Preview(
                model=model,
                tensors=event.tensors,
                class_names=event.class_names,
                targets=targets if not previews else None,
                first_layer=_first_layer([one for one in record.of(FiltersShown) if one.model == model]),
                dynamics=_dynamics([one for one in predictions if one.values]),
                trouble=next((one.trouble for one in predictions if one.trouble), ""),
            )
        )
    return tuple(previews)


def _first_layer(events: Sequence[FiltersShown]) -> FirstLayer | None:
    if not events:
        return None
    first, last = events[0], events[-1]
    if first.filters is None or last.filters is None:
        return None
    return FirstLayer(
        name=first.layer, kind=first.kind, count=first.count, start=first.filters, end=last.filters, moved=last.moved
    )


def _dynamics(predictions: Sequence[Predicted]) -> Dynamics | None:
    """For the first batch, where we asked the model for it; else for the batch that came most often."""
    predictions = [one for one in predictions if one.asked] or predictions
    if not predictions:
        return None
    often = Counter((one.batch, one.kind, len(one.values)) for one in predictions).most_common(1)[0][0]
    of_batch = [one for one in predictions if (one.batch, one.kind, len(one.values)) == often]
    last = of_batch[-1]
    came_again = "a training batch that came again" if last.learning else "the first batch of the evaluations"
    return Dynamics(
        kind=last.kind,
        targets=last.targets,
        snapshots=tuple(Snapshot(one.step, one.values) for one in of_batch),
        training_mode=last.training_mode,
        batch="the first batch" if last.asked else came_again,
        asked=last.asked,
    )


def _targets(record: Record) -> Targets | None:
    """What the first loss in training compared the output with, and its classes over the calls on record."""
    calls = [call for call in record.of(LossCall) if call.output_requires_grad]
    fact = calls[0].target if calls else None
    if fact is None:
        return None
    found = [call.target.classes for call in calls if call.loss == calls[0].loss and call.target]
    classes = [one for one in found if one is not None and "float" not in fact.dtype]
    whole = all(one.distinct == len(one.counts) for one in classes)
    counts = sum((Counter(one.counts) for one in classes), Counter()) if whole else Counter()
    return Targets(
        loss=calls[0].loss,
        dtype=fact.dtype,
        shape=tuple(fact.shape),
        low=fact.low,
        high=fact.high,
        counts={str(label): counts[label] for label in sorted(counts)},
        batches=len(classes),
    )
