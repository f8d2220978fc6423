"""What `ablate` and `optimizer` showed: the part of a recipe that holds the run back, and the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict, RecipePart

if TYPE_CHECKING:
    from unstuck.rule import Rule

NAMES = {
    "detail": "what the script has",
    "own": "loss with it",
    "other": "loss without it",
    "guess": "loss of a guess",
    "steps": "steps",
    "seeds": "seeds",
}


def part_of(experiment: Experiment) -> RecipePart | None:
    """The part that was confirmed to hold the run back, if one was."""
    part = experiment.measures.get("part")
    if experiment.name not in ("ablate", "optimizer") or experiment.verdict != ExperimentVerdict.HELD_BACK or not part:
        return None
    return RecipePart(str(part))


def finding_of(rule: Rule, experiment: Experiment, cause: str, fix: str, variant: str = "") -> Finding:
    """That the run learns without the part, and only without."""
    return rule.finding(
        experiment.sentence,
        cause=cause,
        fix=fix,
        subject=Subject("loop", str(part_of(experiment))),
        place=experiment.place,
        evidence=[*evidence(experiment), Evidence("compared", experiment.method)],
        variant=variant,
    )


def evidence(experiment: Experiment) -> list[Evidence]:
    """Both losses, and over how many steps and seeds."""
    rows = [(name, experiment.measures.get(key)) for key, name in NAMES.items()]
    return [
        Evidence(name, float(f"{value:.4g}") if isinstance(value, float) else value)
        for name, value in rows
        if value is not None
    ]
