"""R18: the run ends while the learning rate is still warming up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from unstuck.events import OptimizerSeen, OptimizerStep
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.rules.shared.dynamics import rounded
from unstuck.rules.shared.schedules import Rates, finished, rates_in_use, schedules

rule = Rule(
    code="R18",
    name="warmup-outlasts-run",
    title="the run ends while the learning rate is still warming up",
    severity=Severity.WARNING,
    explains=("O07", "O22"),
    needs=(OptimizerStep,),
)

FEWEST = 20
REACHED = 0.5
"""Of the learning rate that was asked for: a run that ends above it has warmed up."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The rate rose to the very end, and never came near the one the optimizer was built with."""
    if not finished(record):
        return
    for optimizer, rates in rates_in_use(record).items():
        built = next((seen for seen in record.of(OptimizerSeen) if seen.optimizer == optimizer), None)
        wanted = max(built.rates, default=0.0) if built is not None else 0.0
        highest = [max(now) for _, now in rates]
        makers = [schedule for schedule in schedules(record) if schedule.seen.optimizer == optimizer and schedule.steps]
        if not makers or len(rates) < FEWEST or not _rises(highest) or not 0 < highest[-1] < REACHED * wanted:
            continue
        yield _finding(record, optimizer, rates, wanted, makers[0].seen.kind)


def _rises(highest: Sequence[float]) -> bool:
    """Never falls, and is higher at the end than in the middle: a schedule that decays has had its peak."""
    ordered = all(after >= before for before, after in itertools.pairwise(highest))
    return ordered and highest[-1] > highest[len(highest) // 2]


def _finding(record: Record, optimizer: str, rates: Rates, wanted: float, kind: str) -> Finding:
    maker = next(one for one in schedules(record) if one.seen.optimizer == optimizer and one.steps)
    steps = record.ended.steps if record.ended is not None else rates[-1][0] + 1
    last = max(rates[-1][1])
    usual = sorted(max(now) for _, now in rates)[len(rates) // 2]
    return rule.finding(
        f"The run ended after {steps} steps with the learning rate of {optimizer} still warming up: {last:.2g} of "
        f"{wanted:.2g} ({last / wanted:.0%}).",
        cause=f"{kind} raises the rate step by step from almost 0, and its warm-up is longer than the run, so most "
        f"steps used about {rounded(usual)}.",
        fix=f"Shorten the warm-up to a few percent of the {steps} steps, or call scheduler.step() after every "
        "optimizer.step() if it counts in steps.",
        subject=Subject("optimizer", optimizer),
        place=maker.seen.place,
        related=maker.lines,
        evidence=[
            Evidence("learning rate asked for", wanted),
            Evidence("highest learning rate used", last),
            Evidence("median learning rate used", usual),
            Evidence("steps of the run", steps),
        ],
    )


rule.remedied_by(with_change("NoSchedule"))
