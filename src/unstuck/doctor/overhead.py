"""What watching costs here: CPU time of the same steps with and without it, alternating."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from unstuck.capture import watching
from unstuck.doctor.workloads import Loop, perceptron

ROUNDS = 5
STEPS = 100
WARM_UP = 150
"""Steps of a watched stretch that are not measured: the start of a run is recorded densely."""


def ratios() -> tuple[float, float]:
    """The watched step as a multiple of the bare one, and a second measurement of the bare one likewise."""
    with torch.random.fork_rng(devices=[]):
        train = Loop(perceptron).train
        train(WARM_UP)
        watched, again = [], []
        for _ in range(ROUNDS):
            bare = _seconds(train)
            again.append(_seconds(train) / bare)
            watched.append(_watched_seconds(train) / bare)
    return statistics.median(watched), statistics.median(again)


def _watched_seconds(train: Callable[[int], None]) -> float:
    with tempfile.TemporaryDirectory() as folder, watching(Path(folder) / "run"):
        train(WARM_UP)
        return _seconds(train)


def _seconds(train: Callable[[int], None]) -> float:
    began = time.process_time()
    train(STEPS)
    return time.process_time() - began
