"""Finds the data sets of a program while it runs, and examines them when it has ended: the note `data`."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import msgspec
import torch

from unstuck.capture.data_sets.examining import Examination
from unstuck.capture.data_sets.finder import Finder
from unstuck.capture.guard import Guard
from unstuck.capture.torch_hooks.patches import unwatched
from unstuck.capture.trial.lab import Lab
from unstuck.findings.data_sets import DataFound

LOOKING, LONGEST = 0.3, 20.0
"""The share of the time that may pass until the data sets are known, and the most seconds."""


class DataProbe:
    """Looks for data sets while the program runs, and reads them when that has ended."""

    def __init__(self, lab: Lab, seconds: float) -> None:
        self._lab = lab
        self._until = time.monotonic() + seconds
        self._finder = Finder(lab, min(LONGEST, LOOKING * seconds))
        guard = Guard(lambda text: lab.notes.update(data_trouble=text))
        lab.when_trial_ends.append(guard.protect("its data sets", self._trial_ended))

    def _trial_ended(self) -> None:
        with unwatched(), self._lab.aside(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            sources = self._finder.sources()
            if sources:
                self._note(Examination(self._until, self._note).examine(sources))

    def _note(self, found: DataFound) -> None:
        self._lab.notes["data"] = _finite(msgspec.to_builtins(found))


def _finite(value: Any) -> Any:
    """The same with numbers that JSON has."""
    if isinstance(value, float) and not math.isfinite(value):
        return 0.0 if math.isnan(value) else math.copysign(sys.float_info.max, value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
