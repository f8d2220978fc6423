"""R23: the run learns with Adam at 0.001, and not with its own optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Severity
from unstuck.findings.results import Experiment, RecipePart
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import held_back

rule = Rule(
    code="R23",
    name="optimizer-settings",
    title="the run learns with Adam at 0.001, and not with its own optimizer",
    severity=Severity.ERROR,
    explains=("G18", "O07", "O22", "O26", "R08"),
)

CAUSE = (
    "Data, model and loss are the same in both runs, so the optimizer or its settings (learning rate, momentum, "
    "betas, eps) are at fault."
)
FIX = (
    "Use torch.optim.Adam(model.parameters(), lr=1e-3), or bring the settings back to their defaults one by one; "
    "`unstuck lr` finds the learning rate."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The run learns without it, and only without."""
    if held_back.part_of(experiment) is RecipePart.OPTIMIZER:
        yield held_back.finding_of(rule, experiment, CAUSE, FIX)


rule.remedied_by(with_change("UseAdam"))
