"""R13: examples with equal inputs have different targets, so that no model can fit them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment

rule = Rule(
    code="R13",
    name="conflicting-targets",
    title="equal inputs have different targets, which no model can fit",
    severity=Severity.WARNING,
    explains=("M13",),
)

SHARE = 0.1
"""Of what there is to learn, the share that conflicts must put out of reach: as much as `overfit` lets a loop leave."""
CAUSE = (
    "A model gives equal inputs equal answers. Either the part of the input that tells the examples apart is lost "
    "before the model (a column dropped, rounded or filled in), or targets belong to other rows."
)
FIX = (
    "Look up two of these examples in the raw data: if their inputs differ there, find the step that makes them equal; "
    "if not, check that the targets were not shuffled or joined by the wrong key."
)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """On the batch of `overfit`, equal inputs raise the floor by a good part of what there is to learn."""
    if experiment.name != "overfit":
        return
    names = ("floor", "apart", "constant", "conflicting", "examples")
    values = [experiment.measures.get(name) for name in names]
    if any(value is None for value in values):
        return
    floor, apart, constant, conflicting, examples = (float(value or 0) for value in values)
    if not conflicting or constant <= apart or floor - apart < SHARE * (constant - apart):
        return
    yield rule.finding(
        f"{conflicting:.0f} of the {examples:.0f} examples of a batch have the input of another example and a "
        f"different target: no model can bring its loss below {floor:.3g} (one answer for all: {constant:.3g}).",
        cause=CAUSE,
        fix=FIX,
        subject=Subject("loop", "inputs and targets"),
        evidence=[
            Evidence("examples in conflict", conflicting),
            Evidence("lowest possible loss", float(f"{floor:.4g}")),
            Evidence("loss of one answer for all", float(f"{constant:.4g}")),
        ],
    )
