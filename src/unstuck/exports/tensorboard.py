"""TensorBoard: what `unstuck run --to tensorboard` would have written, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from unstuck.exports import Kind
from unstuck.trackers.tensorboard import Board
from unstuck.watch.forward import hand_over

if TYPE_CHECKING:
    from unstuck.record import Record

KIND = Kind.FOLDER
NEEDS = EXTRA = ""


def write(record: Record, path: Path, folder: str) -> None:
    """As an event file of its own."""
    if any(Path(folder).glob("*tfevents*")):
        raise FileExistsError(0, "it holds an event file already, and TensorBoard reads one in a folder", folder)
    hand_over(record, Board(folder), path)
