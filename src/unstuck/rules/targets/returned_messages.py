"""P28: messages of a graph network are summed up at their senders."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import MessagesReturned
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="P28",
    name="returned-messages",
    title="rows are picked and summed up by the same index: messages go back to their senders",
    severity=Severity.ERROR,
    explains=("M13", "P01", "P20", "P21", "R03", "R08"),
    needs=(),
)

FEWEST = 3


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """From `index_add` and `scatter_add` in the first backwards."""
    events = list(record.of(MessagesReturned))
    if len(events) < FEWEST:
        return
    last = events[-1]
    known = all(event.known for event in events)
    yield rule.finding(
        f"{last.messages:,} rows are picked by an index and summed up by the same index, so each of the {last.rows:,} "
        "nodes gets only its own row again, as often as it has edges.",
        cause="The other end of the edges is not used: neighbours have no influence, and the graph does not matter.",
        fix="Sum up at the other end: torch.zeros_like(x).index_add_(0, dst, x[src]).",
        subject=Subject("call", "index_add"),
        place=last.place,
        evidence=[Evidence("messages", last.messages), Evidence("nodes", last.rows)],
        severity=Severity.ERROR if known else Severity.WARNING,
        confidence=Confidence.CERTAIN if known else Confidence.LIKELY,
    )
