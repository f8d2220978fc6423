"""TensorBoard: an event file next to those of the program, so that both share the steps. Needs no TensorBoard."""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Mapping, Sequence

from unstuck.tfevents.writer import EventFile
from unstuck.trackers import PREFIX, Found, Place, Run, markdown

NEEDS = ""
WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
FOLDER = "runs"
"""Where TensorBoard's writer of torch puts runs as well."""


def current() -> Place | None:
    """The folder of the writer that is open; of several, that of the newest. Nobody keeps a list of them."""
    kinds = tuple(kind for name in WRITERS if (kind := getattr(sys.modules.get(name), "SummaryWriter", None)))
    if not kinds:
        return None
    folders = [
        os.path.abspath(str(thing.log_dir))
        for thing in gc.get_objects()
        if issubclass(type(thing), kinds) and getattr(thing, "all_writers", None)
    ]
    return {"folder": max(folders, key=_begun)} if folders else None


def _begun(folder: str) -> float:
    return os.stat(folder).st_mtime if os.path.isdir(folder) else 0.0


def begin(run: Run, place: Place | None) -> Board:
    """A run of its own below the program's: of two event files in one folder TensorBoard would only read the newer."""
    parent = place["folder"] if place is not None else ""
    return Board(os.path.join(parent, "unstuck") if parent else os.path.join(FOLDER, "unstuck", run.name))


class Board:
    """An event file."""

    def __init__(self, folder: str) -> None:
        self._file = EventFile(folder)
        self.where = f"{os.path.relpath(folder)} (tensorboard --logdir {_logdir(folder)})"

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """As scalars."""
        self._file.scalars(step, numbers)

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """Over the exponents: on a linear axis all but the largest values would be one bar at 0."""
        exponents = [round(math.log2(edge)) for edge in edges]
        self._file.histogram(step, name.replace("/", "_log2/", 1), exponents, counts)

    def finding(self, found: Found) -> None:
        """As a text."""
        self._file.text(found.step, f"{PREFIX}/{found.code} {found.name}", markdown([found]))

    def flush(self) -> None:
        """For a TensorBoard that is open."""
        self._file.flush()

    def end(self, findings: Sequence[Found]) -> None:
        """The findings together."""
        last = max((found.step for found in findings), default=0)
        self._file.text(last, f"{PREFIX}/findings", markdown(findings))
        self._file.close()


def _logdir(folder: str) -> str:
    """The folder that holds all runs: the first part of a relative one."""
    shown = os.path.relpath(folder)
    return shown.split(os.sep)[0] if not shown.startswith("..") else os.path.dirname(os.path.dirname(shown))
