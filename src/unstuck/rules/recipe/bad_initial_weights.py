"""R24: the run learns with torch's default initial weights, and not with its own."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Severity
from unstuck.findings.results import Experiment, RecipePart
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import held_back

rule = Rule(
    code="R24",
    name="bad-initial-weights",
    title="the run learns with torch's default initial weights, and not with its own",
    severity=Severity.ERROR,
    explains=("G09", "G16", "G17", "O22", "O25", "O26", "R01", "R08"),
)

CAUSE = (
    "Weights that are all equal get equal gradients and stay equal; weights that are far too large or too small "
    "saturate the layers or make the signal vanish."
)
FIX = (
    "Remove the initialization, or use nn.init.kaiming_normal_ for layers before a ReLU; never zeros or one "
    "constant for the weights of a layer."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The run learns without it, and only without."""
    if held_back.part_of(experiment) is RecipePart.INITIAL_WEIGHTS:
        yield held_back.finding_of(rule, experiment, CAUSE, FIX)


rule.remedied_by(with_change("DefaultWeights"))
