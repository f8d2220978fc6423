"""P34: a teacher's answers have nothing to do with the labels of the examples they stand next to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import SoftTargetsCompared
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="P34",
    name="foreign-soft-targets",
    title="soft targets, such as a teacher's answers, do not fit the labels of the same examples",
    severity=Severity.WARNING,
    explains=("O07", "P20", "R08"),
    needs=(SoftTargetsCompared,),
)

CERTAIN = 4.0
"""Standard errors above chance, from which on they have something to do with each other."""
NOTICEABLE = 0.05
CONFIDENT = 1.3
"""Times the probability of a class among equals: a teacher that is not sure of anything says nothing."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Of the latest examples: how often is the most likely class of the soft target the label?"""
    latest = {event.place and event.place.key: event for event in record.of(SoftTargetsCompared)}
    for event in latest.values():
        error = math.sqrt(event.chance * (1 - event.chance) / max(1, event.examples))
        agrees = event.agree > event.chance + max(NOTICEABLE, CERTAIN * error)
        if agrees or event.confidence < CONFIDENT / max(1, event.classes):
            continue
        yield rule.finding(
            f"The most likely class of the soft targets is the label for {event.agree:.0%} of {event.examples} "
            f"examples; of rows that do not belong together it would be for {event.chance:.0%}.",
            cause="Either soft targets and labels are in different orders, such as answers that were collected over a "
            "shuffled loader and then put next to the data in their own order, or the teacher has learned nothing.",
            fix="Collect a teacher's answers without shuffling, or by the index of each example, or compute them for "
            "the batch at hand. Check the teacher's accuracy on the training data first.",
            subject=Subject("target", "soft targets"),
            place=event.place,
            related=[event.labels_at],
            evidence=[
                Evidence("agree", event.agree),
                Evidence("by chance", event.chance),
                Evidence("probability of the most likely class", event.confidence),
            ],
            confidence=Confidence.LIKELY,
        )
