"""O01: the loop cannot overfit a single batch."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Place
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule

rule = Rule(
    code="O01",
    name="cannot-overfit-one-batch",
    title="trained on a single batch, the loss stays far above its floor",
    severity=Severity.ERROR,
    explains=("R03", "R08"),
)

CAUSE = (
    "A model with enough parameters can overfit any single batch. A loop that cannot is wired wrong: more data, more "
    "steps or another architecture will not help."
)
TOO_HIGH = "With a lower learning rate the same loop overfits the batch, so its steps are too large."
FIX = (
    "Trace one step with this batch: are all parameters in the optimizer, does each have a gradient after backward(), "
    "does step() change it, and does the loss get what it expects (raw scores, matching shapes)?"
)
LOWER = "Multiply the learning rate by {factor:g}; `unstuck lr` finds a good value."
EXPLAINED = "Fix {codes} first: it was found in the same run."
LEVELS = {
    "start": "first loss",
    "expected": "loss of a random guess",
    "floor": "lowest possible loss",
    "constant": "loss of one answer for all",
    "end": "final loss",
    "steps": "steps on one batch",
}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The experiment `overfit` failed."""
    if experiment.name != "overfit" or experiment.verdict != ExperimentVerdict.FAILED:
        return
    measures = experiment.measures
    codes, works = str(measures.get("explained_by") or ""), measures.get("rate_that_works")
    lower = isinstance(works, float) and works < 1
    fix = EXPLAINED.format(codes=codes) if codes else LOWER.format(factor=works) if lower else FIX
    levels = [(name, measures.get(key)) for key, name in LEVELS.items()]
    path, _, line = str(measures.get("place") or "").rpartition(":")
    yield rule.finding(
        experiment.sentence,
        cause=TOO_HIGH if lower else CAUSE,
        fix=fix,
        subject=Subject("loop", "one batch"),
        place=Place(path, int(line)) if path and line.isdigit() else None,
        evidence=[Evidence(name, float(f"{value:.4g}")) for name, value in levels if isinstance(value, int | float)],
    )
