"""P22: no gradient comes past some place, though weights before it are in the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule

rule = Rule(
    code="P22",
    name="gradient-blocked",
    title="no gradient comes past some layer, though weights before it are in the optimizer",
    severity=Severity.ERROR,
    explains=("G09", "O01", "O07", "O25"),
)

CAUSE = (
    "A detach(), .data, no_grad(), a multiplication by zero, rounding, argmax or a saturated function between the two "
    "passes numbers on and no gradient back. The layers before it keep their initial weights."
)
FIX = "Follow the tensor between these two places in the code and remove what cuts the gradient."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The experiment `layers` followed the gradient from the loss down."""
    name = experiment.measures.get("blocked_at")
    if experiment.name != "layers" or experiment.verdict != ExperimentVerdict.BLOCKED or not isinstance(name, str):
        return
    yield rule.finding(
        experiment.sentence,
        cause=CAUSE,
        fix=FIX,
        subject=Subject("module", name),
        place=experiment.place,
    )
