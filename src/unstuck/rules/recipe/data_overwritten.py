"""R25: reading an example changes the stored one, so that the data set decays from pass to pass."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import LoaderSeen
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.rules.shared.data import trained_on

rule = Rule(
    code="R25",
    name="data-overwritten",
    title="the data set changes its stored examples when they are read",
    severity=Severity.WARNING,
    explains=("M13", "O07", "R03", "R08", "R09", "R13"),
    needs=(LoaderSeen,),
)

FEWEST = 2
"""Passes: a data set that fills a cache writes each example once."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Arrays of a data set that changed while the first batch of a pass was drawn, in a later pass, too."""
    for loader in trained_on(record):
        if loader.overwritten_passes < FEWEST or loader.passes < FEWEST:
            continue
        name, dataset = loader.overwritten.partition("[")[0], loader.dataset
        yield rule.finding(
            f"Reading examples changes {dataset}.{name} itself: its numbers were others after the first batch of "
            f"{loader.overwritten_passes} passes.",
            cause=f"If an example taken out of {name} is a view of it, an operation in place (+=, mul_, x[...] = 0) "
            "writes through to the stored data, so every pass works on what the passes before have left.",
            fix=f"Copy the example before it is changed: self.{name}[index].clone() for a tensor, .copy() for an "
            "array; or use operations that return a new one.",
            subject=Subject("input", f"{dataset}.{name}"),
            place=loader.place,
            evidence=[
                Evidence("passes in which it changed", loader.overwritten_passes),
                Evidence("passes", loader.passes),
            ],
            confidence=Confidence.LIKELY,
        )


rule.remedied_by(with_change("KeepData"))
