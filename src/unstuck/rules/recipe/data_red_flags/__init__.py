"""R09: data that a model cannot learn from: broken, identical, badly scaled or of one class."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.events import BatchSeen, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.findings.results import Experiment
from unstuck.rule import Remedies, Rule, find_in


class Flag(Variant):
    """What is wrong with the data."""

    BROKEN_VALUES = "broken-values", "inputs contain NaN or infinity"
    IDENTICAL = "identical", "all examples of a batch are the same"
    SCALE = "scale", "inputs are far larger or smaller than 1"
    OUTLIER = "outlier", "one input is far outside the range of the others"
    DUPLICATES = "duplicates", "batches contain the same examples several times"
    EVALUATION = "evaluation", "evaluation inputs have another mean or scale than training inputs"
    CONSTANT_COLUMNS = "constant-columns", "columns of a table have the same value in every example"
    UNSEEN_CLASS = "unseen-class", "evaluation has labels that training never has"
    ONE_CLASS = "one-class", "every label is the same"
    IMBALANCE = "imbalance", "nearly all labels are of one class, and nothing else is predicted"


rule = Rule(
    code="R09",
    name="data-red-flags",
    title="inputs or labels that are broken, identical, badly scaled, of one class, or different in evaluation",
    severity=Severity.ERROR,
    explains=("G05", "G07", "G08", "G09", "G10", "G18", "M13", "M14", "O07", "O22", "O25", "O26", "R01", "R08"),
    needs=(BatchSeen,),
    variants=Flag.titles(),
)


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """One batch before training: broken values, identical examples, sizes far from 1."""
    from unstuck.rules.recipe.data_red_flags.setup import find

    return find(setup)


rule.in_run(find_in("unstuck.rules.recipe.data_red_flags.run"))


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterable[Finding]:
    """Whole data sets, read by `data`."""
    from unstuck.rules.recipe.data_red_flags import data

    return data.find(experiment)


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Scale the inputs to size 1, if their scale is the problem; other data cannot be fixed from outside."""
    from unstuck.interventions import ChangeInputs

    if finding.variant == Flag.SCALE:
        yield (ChangeInputs("standardised"),)
