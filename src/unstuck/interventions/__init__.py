"""Controlled changes to a run of an unmodified script. One file each: its fields, what it does, and its words.

Importing these imports no torch: rules name the interventions that remove their pitfall, and only a trial carries them
out. To add one, add a file with a subclass of `Intervention`; nothing else has to know.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Union

from unstuck.importable import importable
from unstuck.interventions.base import Intervention as Intervention

if TYPE_CHECKING:
    from unstuck.capture.trial.lab import Lab


@functools.cache
def all_interventions() -> dict[str, type[Intervention]]:
    """Every class in the files of this folder, by its name."""
    for name, _ in importable(__path__):
        importlib.import_module(f"{__name__}.{name}")
    return {kind.__name__: kind for kind in Intervention.__subclasses__()}


def any_intervention() -> Any:
    """The union of them all: the type to decode."""
    return Union[tuple(all_interventions().values())]  # noqa: UP007 - built from the classes


def intervene(changes: Iterable[Intervention]) -> Lab:
    """Carry them out in this process. `Lab.undo` ends them all."""
    from unstuck.capture.trial.lab import Lab

    lab = Lab()
    for change in changes:
        change.apply(lab)
    return lab


def in_words(changes: Iterable[Intervention]) -> str:
    """What they do, in half a sentence."""
    return " and ".join(change.words for change in changes)


def __getattr__(name: str) -> Any:
    """`from unstuck.interventions import ClipGradients` finds the class, whatever its file."""
    kind = None if name.startswith("_") else all_interventions().get(name)
    if kind is None:
        raise AttributeError(f"there is no intervention {name}")
    return kind
