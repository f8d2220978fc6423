"""O14: cross_entropy given targets in a form it does not take: one-hot, float, (N, 1), or ids outside 0..C-1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unstuck.events import LossCall, ModelSeen, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.record import Record
from unstuck.rule import Rule, find_in


class Form(Variant):
    """What is wrong with the targets, or with what they are compared with."""

    ONE_HOT = "one-hot", "the targets are one-hot rows instead of class ids"
    EXTRA_DIMENSION = "extra-dimension", "the targets have an extra dimension"
    WRONG_TYPE = "wrong-type", "the class ids are not integers"
    OUT_OF_RANGE = "out-of-range", "class ids are outside 0..C-1"
    NOT_PROBABILITIES = "not-probabilities", "the rows of float targets do not sum to 1"
    UNUSED_OUTPUTS = "unused-outputs", "some outputs are never a target"
    CLASSES_NOT_SECOND = "classes-not-second", "the classes are not dimension 1 of the scores"
    ROWS_DIFFER = "rows-differ", "scores and targets have different numbers of rows"
    CLASS_WEIGHTS = "class-weights", "there are not as many class weights as classes"


rule = Rule(
    code="O14",
    name="ce-target-form",
    title="cross_entropy given one-hot, float, (N, 1) or out-of-range targets",
    severity=Severity.ERROR,
    variants=Form.titles(),
)

ONE_HOT_CAUSE = (
    "One-hot rows are read as probabilities: the loss is the same as with class ids, but takes C times the memory and "
    "does not check that the ids are in range."
)
PASS_IDS = "Pass the class ids themselves, without one_hot."

rule.in_source(find_in("unstuck.rules.convergence.ce_target_form.source"))


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """What a crash shows, and targets that pass without one."""
    from unstuck.rules.convergence.ce_target_form import accepted, crash

    yield from crash.explain(record)
    yield from accepted.find(record.of(LossCall), record.of(ModelSeen))


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """Targets of the probed batch that pass without an error."""
    from unstuck.rules.convergence.ce_target_form import accepted

    return accepted.find(setup.losses, setup.models)
