"""`trainer_state.json` of transformers' Trainer: what it logged, in the folder of each checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unstuck.logged import Log, LogError, Points, ordered
from unstuck.regular import read_regular

NAME = "trainer_state.json"
LARGEST = 64 * 2**20
SUMMARY = "train_runtime"
"""In the last entry, which sums up the run: its `train_loss` is a mean over all steps."""


def accepts(path: Path) -> bool:
    """The file, or the folder of a checkpoint that holds it."""
    return path.suffix == ".json" or (path.is_dir() and (path / NAME).is_file())


def read(path: Path) -> Log:
    """Its `log_history`."""
    file = path / NAME if path.is_dir() else path
    try:
        state: Any = json.loads(read_regular(file, LARGEST))
    except OSError as error:
        raise LogError(f"{file} cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError):
        raise LogError(f"{file} is not JSON; give the trainer_state.json of a Trainer.") from None
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not all(isinstance(entry, dict) for entry in history):
        raise LogError(f"{file} has no `log_history`; give the trainer_state.json of a Trainer.")
    found: dict[str, Points] = {}
    seconds: float | None = None
    for entry in history:
        step = entry.get("step")
        if isinstance(step, bool) or not isinstance(step, int):
            raise LogError(f"{file} has an entry without a step in its `log_history`.")
        if SUMMARY in entry:
            seconds = entry[SUMMARY] if isinstance(entry[SUMMARY], float) else None
            continue
        for name, value in entry.items():
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, []).append((step, float(value)))
    return Log(path=path, series={name: ordered(points) for name, points in found.items()}, seconds=seconds)
