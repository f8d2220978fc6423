"""R16: one number of the input gives the target away."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import ColumnsMatched
from unstuck.findings import Evidence, Finding, Severity, Subject
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
            cause="The model is given the answer. The loss falls to 0, and nothing is learned about the other inputs, "
            "which are all there is when the answer is not known.",
            fix="Drop the target from the inputs (df.drop(columns=[target])); in a forecast, end the window before the "
            "value that is asked for.",
            subject=Subject("loss", "inputs"),
            place=last.place,
            evidence=[
                Evidence("columns", names),
                Evidence("examples in the last batch", last.examples),
                Evidence("loss", last.loss),
            ],
        )
