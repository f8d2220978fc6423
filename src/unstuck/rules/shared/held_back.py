"""What `ablate` and `optimizer` showed: the part of a recipe that holds the run back, and the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.findings import Evidence

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment

NAMES = {
    "detail": "what the script has",
    "own": "loss with it",
    "other": "loss without it",
    "guess": "loss of a guess",
    "steps": "steps",
    "seeds": "seeds",
}


def part_of(experiment: Experiment) -> str:
    """The part that was confirmed to hold the run back; empty if none was."""
    if experiment.name not in ("ablate", "optimizer") or experiment.verdict != "held back":
        return ""
    return str(experiment.measures.get("part") or "")


def evidence(experiment: Experiment) -> list[Evidence]:
    """Both losses, and over how many steps and seeds."""
    rows = [(name, experiment.measures.get(key)) for key, name in NAMES.items()]
    return [
        Evidence(name, float(f"{value:.4g}") if isinstance(value, float) else value)
        for name, value in rows
        if value is not None
    ]
