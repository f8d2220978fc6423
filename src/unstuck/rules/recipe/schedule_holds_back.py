"""R22: the run learns with a constant learning rate, and not with its schedule."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Severity
from unstuck.findings.results import Experiment, RecipePart
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import held_back

rule = Rule(
    code="R22",
    name="schedule-holds-back",
    title="the run learns with a constant learning rate, and not with its schedule",
    severity=Severity.ERROR,
    explains=("O07", "O22", "R07", "R08"),
)

CAUSE = (
    "The schedule keeps the rate so low, by a warm-up that outlasts the run or a decay that comes too early, that "
    "the weights hardly move."
)
FIX = (
    "Leave the schedule out until the run learns; then count its lengths in the unit in which scheduler.step() is "
    "called, steps or epochs."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The run learns without it, and only without."""
    if held_back.part_of(experiment) is RecipePart.SCHEDULE:
        yield held_back.finding_of(rule, experiment, CAUSE, FIX)


rule.remedied_by(with_change("NoSchedule"))
