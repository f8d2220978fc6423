"""O01: the loop cannot even learn one batch by heart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Place
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment

rule = Rule(
    code="O01",
    name="cannot-overfit-one-batch",
    title="fed one batch again and again, the loss does not come to its floor",
    severity=Severity.ERROR,
    explains=("R03", "R08"),
)

CAUSE = (
    "A model with enough parameters learns one batch by heart, whatever the data. A loop that cannot is wrongly wired: "
    "more data, more steps or another architecture will not mend it."
)
TOO_HIGH = "With a lower learning rate the same loop learns the batch by heart, so its steps are too large."
FIX = (
    "Follow one step with this batch: do all parameters reach the optimizer, does every one have a gradient after "
    "backward(), does step() change it, and does the loss get what it expects (raw scores, matching shapes)?"
)
LOWER = "Take {factor:g} times the learning rate, and look at `unstuck lr`."
EXPLAINED = "Mend {codes} first: it was seen in the same run."
LEVELS = {
    "start": "first loss",
    "expected": "loss of a guess",
    "floor": "lowest loss possible",
    "constant": "loss of one answer for all",
    "end": "loss at the end",
    "steps": "steps on one batch",
}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The experiment `overfit` failed."""
    if experiment.name != "overfit" or experiment.verdict != "failed":
        return
    measures = experiment.measures
    codes, works = str(measures.get("explained_by") or ""), measures.get("rate_that_works")
    lower = isinstance(works, float) and works < 1
    fix = EXPLAINED.format(codes=codes) if codes else LOWER.format(factor=works) if lower else FIX
    told = [(name, measures.get(key)) for key, name in LEVELS.items()]
    yield rule.finding(
        experiment.sentence,
        cause=TOO_HIGH if lower else CAUSE,
        fix=fix,
        subject=Subject("loop", "one batch"),
        place=_place(measures.get("place")),
        evidence=[Evidence(name, float(f"{value:.4g}")) for name, value in told if isinstance(value, int | float)],
    )


def _place(told: object) -> Place | None:
    path, _, line = str(told or "").rpartition(":")
    return Place(path, int(line)) if path and line.isdigit() else None
