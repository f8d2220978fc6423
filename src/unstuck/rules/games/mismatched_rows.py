"""P31: rows that meet in one loss belong to different examples."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Place, RowsCompared
from unstuck.findings import Evidence, Finding, Severity, Subject, Variant
from unstuck.record import Record
from unstuck.rule import Rule


class Apart(Variant):
    """How rows of different examples come together."""

    PICKED = "picked", "they are picked by different indices"
    CROSSED = "crossed", "two axes became one in opposite orders"


rule = Rule(
    code="P31",
    name="mismatched-rows",
    title="rows that meet in one loss belong to different examples",
    severity=Severity.ERROR,
    explains=("O01", "O07", "P11", "P15", "P19", "P20", "P21", "R01", "R03", "R08", "R13"),
    needs=(RowsCompared,),
    variants=Apart.titles(),
)

FEWEST = 5
"""Losses that show it."""
MOSTLY = 0.9
FEWEST_AGAIN = 8
"""Rows that came again, before it counts whether they kept their partner."""
ONE_TO_ONE = 0.95
"""The share of rows with a partner of their own. A neighbour that many rows have in common is chosen on purpose."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The last count for each pair of lines."""
    last: dict[tuple[Place | None, Place | None], RowsCompared] = {}
    for event in record.of(RowsCompared):
        last[(event.place, event.other)] = event
    for event in last.values():
        if event.crossed >= FEWEST and event.crossed >= MOSTLY * event.looks:
            yield _crossed(event)
        elif event.apart >= FEWEST and event.apart >= MOSTLY * event.looks and _is_by_chance(event):
            yield _finding(event)


def _is_by_chance(event: RowsCompared) -> bool:
    """Did rows get other partners when they came again, or was one shuffled and the other not?"""
    changed = event.again >= FEWEST_AGAIN and 2 * event.changed > event.again
    one_to_one = 2 * event.pairs >= event.length and event.partners >= ONE_TO_ONE * event.pairs
    return changed or event.shuffled or one_to_one


def _crossed(event: RowsCompared) -> Finding:
    first, second = event.axes
    where = f" at line {event.other.line}" if event.other is not None else ""
    return rule.finding(
        f"These rows were [{first}, {second}] before they became one axis, and those they meet{where} in one loss were "
        f"[{second}, {first}]: number by number, they belong to different examples.",
        cause="A reshape or flatten goes through the last axis first. The two have their axes in opposite orders, such "
        "as steps and environments, so the same number is another example in each.",
        fix="Bring both to one order before they are flattened: `.transpose(0, 1)`, or `torch.stack(..., dim=1)`.",
        subject=Subject("data", "rows"),
        place=event.place,
        evidence=[
            Evidence("losses looked at", event.looks),
            Evidence("with rows in opposite orders", event.crossed),
            Evidence("rows", event.length),
        ],
        variant=Apart.CROSSED,
    )


def _finding(event: RowsCompared) -> Finding:
    where = f" at line {event.other.line}" if event.other is not None else ""
    again = event.changed > 0
    return rule.finding(
        f"These rows meet rows{where} in one loss, but both are picked by different indices: in {event.apart} of "
        f"{event.looks} losses, most of the {event.rows} rows belong to different examples.",
        cause="Row by row, a loss compares what stands at the same place. Here the two were put into different orders, "
        "so an example gets the target or the weight of another one, and there is nothing to learn from."
        + (f" {event.changed:,} of {event.again:,} rows that came again met another row than before." if again else ""),
        fix="Draw one index and use it for everything that belongs together: `index = torch.randperm(n)`, `x[index]`, "
        "`y[index]`.",
        subject=Subject("data", "rows"),
        place=event.place,
        evidence=[
            Evidence("losses looked at", event.looks),
            Evidence("with rows of different examples", event.apart),
            Evidence("rows to pick from", event.length),
        ],
        variant=Apart.PICKED,
    )
