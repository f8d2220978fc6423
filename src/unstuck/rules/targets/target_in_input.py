"""R16: one number of the input gives the target away."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import ColumnsMatched
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects

rule = Rule(
    code="R16",
    name="target-in-input",
    title="one number of the input is the target itself, perhaps scaled",
    severity=Severity.WARNING,
    explains=("M13",),
    needs=(),
)

CAUSE = (
    "The model is given the answer. The loss falls to 0, and nothing is learned about the other inputs, which are all "
    "there is when the answer is not known."
)
FIX = (
    "Drop the target from the inputs (df.drop(columns=[target])); in a forecast, end the window before the value that "
    "is asked for."
)
FEWEST = 3
ENOUGH = 64
"""Examples in all: a column of zeros and ones does not follow so many labels by chance."""
MOST = 4
"""Columns that may hold the target: if many do, the task may be to copy."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A column from which the target follows exactly, in every batch looked at."""
    lines = objects.by_place(record.of(ColumnsMatched))
    for events in lines.values():
        last = events[-1]
        always = set(last.matching).intersection(*(event.matching for event in events))
        enough = sum(event.examples for event in events) >= ENOUGH and len(events) >= FEWEST
        if not enough or not 0 < len(always) <= MOST or len(always) * 2 > last.columns:
            continue
        names = " and ".join(str(one) for one in sorted(always))
        what = f"the class ({last.classes} of them)" if last.classes else "the target, by a straight line"
        yield rule.finding(
            f"Column {names} of the {last.columns} inputs gives {what}, exactly, for all examples of the "
            f"{len(events)} batches looked at.",
            cause=CAUSE,
            fix=FIX,
            subject=Subject("loss", "inputs"),
            place=last.place,
            evidence=[
                Evidence("columns", names),
                Evidence("examples in the last batch", last.examples),
                Evidence("loss", last.loss),
            ],
        )


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The same in the whole training data, read by `data`."""
    training = experiment.data.training if experiment.data is not None else None
    if training is None or training.read < ENOUGH or not 0 < len(training.telling) <= MOST:
        return
    if len(training.telling) * 2 > training.columns or training.columns < FEWEST:
        return
    names = " and ".join(str(one) for one in training.telling)
    what = "the class" if training.classes is not None else "the target, by a straight line"
    yield rule.finding(
        f"Column {names} of the {training.columns} inputs of {training.name} gives {what}, exactly.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject("loss", "inputs"),
        place=training.place,
        evidence=[Evidence("columns", names), Evidence("examples read", training.read)],
    )
