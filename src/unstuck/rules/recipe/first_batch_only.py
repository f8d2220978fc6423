"""R19: every step draws the first batch of the loader again, so the rest of the data is never used."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import LoaderSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.data import trained_on

rule = Rule(
    code="R19",
    name="first-batch-only",
    title="every step restarts the loader and gets its first batch again",
    severity=Severity.ERROR,
    explains=("M04", "M13", "R09"),
    needs=(LoaderSeen,),
)

FEWEST = 10
LOOKED_AT = 5
"""Later passes whose first batch is compared with that of the first one."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A loader that is begun as often as there are steps, each time with the very same batch."""
    steps = record.ended.steps if record.ended is not None else 0
    for loader in trained_on(record):
        size = loader.batch_size or 0
        every_step = loader.passes >= 0.9 * steps and steps >= FEWEST
        if not every_step or loader.same_start < LOOKED_AT or not size or not loader.length or loader.length <= size:
            continue
        batches = -(-loader.length // size)
        yield rule.finding(
            f"{loader.loader} was restarted {loader.passes} times in {steps} steps and gave the same first batch "
            f"each time: {size} of {loader.length:,} examples were used.",
            cause="iter(loader) begins a new pass, so next(iter(loader)) inside the loop always returns the first "
            "batch, and without shuffling that is always the same one.",
            fix="Loop over the loader: for batch in loader: ... To draw single batches, call iter(loader) once before "
            "the loop.",
            subject=Subject("loop", loader.loader),
            place=loader.place,
            evidence=[
                Evidence("passes begun", loader.passes),
                Evidence("optimizer steps", steps),
                Evidence("batches in the data set", batches),
            ],
            confidence=Confidence.LIKELY,
        )
