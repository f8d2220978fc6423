"""Where people already look at runs: TensorBoard, W&B, MLflow, Trackio. Each module here is one, named after its file.

A module has

    NEEDS = "wandb"              the package without which it cannot work, or ""
    def current() -> Place | None
        The run that the program itself logs to. It is called once, in the program, after its first step; it looks
        at `sys.modules`, imports nothing and changes nothing.
    def begin(run: Run, place: Place | None) -> Tracker
        Called in a process of its own, which reads the record and never the program.

Other packages add trackers of the same form through the entry point group `unstuck.trackers`, an entry for each
module. A tracker may raise whatever it likes: the others go on, and so does the run.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Protocol

import msgspec

from unstuck.importable import entry_points, importable

GROUP = "unstuck.trackers"
"""The entry points through which other packages bring trackers."""
PREFIX = "unstuck"
"""What the names of everything begin with, so that it stays apart from what the program logs."""

Place = dict[str, str]
"""What a tracker needs to know of the run that the program logs to. It is sent to another process as it is."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The run that is forwarded."""

    name: str
    """Of its folder, such as `20260101-120000-train`."""
    script: str = ""
    arguments: tuple[str, ...] = ()
    folder: str = ""
    """Where its record is."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, as it is forwarded."""

    code: str
    name: str
    severity: str
    message: str
    step: int
    """The steps that had been taken when it was made."""
    place: str = ""
    change: str = ""

    @property
    def title(self) -> str:
        """`error O12 double-softmax at train.py:11`."""
        return f"{self.severity} {self.code} {self.name}" + (f" at {self.place}" if self.place else "")


class Tracker(Protocol):
    """One run of one tracker, to which a run is forwarded. Names are like `unstuck/loss` and
    `unstuck_grad_norm/fc1.bias`."""

    where: str
    """Where to look; it completes "forwarding to wandb: "."""

    def numbers(self, step: int, numbers: Mapping[str, float]) -> None:
        """Gauges of one step. Steps may come again, with other gauges, and a little out of order."""

    def histogram(self, step: int, name: str, edges: Sequence[float], counts: Sequence[int]) -> None:
        """How sizes are distributed: the counts between each two edges, which are powers of two."""

    def finding(self, found: Found) -> None:
        """Something was found."""

    def flush(self) -> None:
        """All that is new has been handed over."""

    def end(self, findings: Sequence[Found]) -> None:
        """The run has ended, with these findings."""


def names() -> tuple[str, ...]:
    """Every tracker, found without importing any."""
    own = [name for name, _ in importable(__path__)]
    return tuple(dict.fromkeys([*own, *(entry.name for entry in entry_points(GROUP))]))


def module_of(name: str) -> ModuleType:
    """The module of the tracker of this name. Raises whatever a module of another package does when it is imported."""
    if name in [own for own, _ in importable(__path__)]:
        return importlib.import_module(f"{__name__}.{name}")
    entry = next(entry for entry in entry_points(GROUP) if entry.name == name)
    found: ModuleType = entry.load()
    return found


def missing(name: str) -> str:
    """Why nothing can be forwarded to the tracker of this name, as a sentence; empty if it is there."""
    try:
        needs = module_of(name).NEEDS
        spec = importlib.util.find_spec(needs) if needs else None
        # The folder `wandb` that W&B writes into is a package too, of a kind that has no place.
        is_here = not needs or (spec is not None and spec.has_location)
    except Exception as error:
        return f"nothing is forwarded to {name}: {type(error).__name__}: {error}".splitlines()[0]
    return "" if is_here else f"nothing is forwarded to {name}, which is not installed here: pip install {needs}"


def markdown(findings: Sequence[Found]) -> str:
    """The findings as a list, for trackers that show Markdown."""
    if not findings:
        return "Nothing found."
    return "\n\n".join(
        f"**{found.title}** (step {found.step:,})\n\n{found.message}"
        + (f"\n\nChange: {found.change}" if found.change else "")
        + f"\n\n`unstuck explain {found.code}`"
        for found in findings
    )
