"""What stands out in the data of a run, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def exhibit_sentences(folder: Path) -> tuple[str, ...]:
    """What stands out in the data that an investigation kept: copies, classes, predictions. A sentence each."""
    from unstuck.events.preview import read_table
    from unstuck.report.preview.exhibited import prediction_sentences, table_sentences, target_sentence

    table = read_table(folder)
    if table is None:
        return ()
    counts = (target_sentence(table.target),) if table.target is not None and table.target.counts else ()
    return (*table_sentences(table), *counts, *prediction_sentences(table))
