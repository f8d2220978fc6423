"""The data of a run: its loaders, and the losses of its training steps."""

from __future__ import annotations

from unstuck.events import LoaderSeen, LossCall
from unstuck.record import Record


def loaders(record: Record) -> dict[str, LoaderSeen]:
    """Every loader as it was known at the end, by its label."""
    return {event.loader: event for event in record.of(LoaderSeen)}


def trained_on(record: Record) -> list[LoaderSeen]:
    """The loaders whose batches were followed by a backward."""
    return [loader for loader in loaders(record).values() if loader.trained]


def training_losses(record: Record, *names: str) -> list[LossCall]:
    """Calls of these losses whose result can be back-propagated."""
    return [call for call in record.of(LossCall) if call.loss in names and call.output_requires_grad]


def ended_in_first_pass(record: Record, loader: LoaderSeen) -> bool:
    """Did the run end before the first pass over the loader did?"""
    steps = record.ended.steps if record.ended is not None else None
    if loader.passes > 1 or steps is None or not loader.length or not loader.batch_size:
        return False
    return steps * loader.batch_size < 0.9 * loader.length
