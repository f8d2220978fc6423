"""P29: a mask of zeros and ones picks rows 0 and 1."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import MaskIndexed
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="P29",
    name="mask-as-index",
    title="a mask of whole numbers is used as an index: it picks rows 0 and 1 again and again",
    severity=Severity.ERROR,
    explains=("M13", "O14", "P20", "P21", "R03", "R08", "R09"),
    needs=(),
)

FEWEST = 3


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """From the rows that the loss was computed of, in the first backwards."""
    events = list(record.of(MaskIndexed))
    if len(events) < FEWEST:
        return
    last = events[-1]
    yield rule.finding(
        f"The loss is computed from rows 0 and 1 alone: its rows are picked by {last.rows:,} whole numbers, "
        f"{last.marked:,} of which are 1 and the others 0.",
        cause="A mask must be of dtype bool. Whole numbers are row numbers, so a 1 picks row 1 and a 0 picks row 0.",
        fix="Make it a mask: out[mask.bool()], or torch.zeros(n, dtype=torch.bool) where it is built.",
        subject=Subject("call", "index"),
        place=last.place,
        evidence=[Evidence("entries of the index", last.rows), Evidence("entries that are 1", last.marked)],
    )
