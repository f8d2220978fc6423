"""R21: WeightedRandomSampler has a weight for each class instead of each example, and draws only the first few."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import LoaderSeen
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.data import trained_on

rule = Rule(
    code="R21",
    name="sampler-too-short",
    title="WeightedRandomSampler has fewer weights than there are examples, and never draws the rest",
    severity=Severity.ERROR,
    explains=("M13", "R09", "R13"),
    needs=(LoaderSeen,),
)

OVERSAMPLED = 10
"""Nobody draws each example more than ten times in a pass on average, if that is not a mistake."""


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Fewer weights than examples; where the number of examples is unknown, far fewer than are drawn in a pass."""
    for loader in trained_on(record):
        if not loader.weights:
            continue
        short = loader.length is not None and loader.weights < loader.length
        far_short = (loader.draws or 0) > OVERSAMPLED * loader.weights
        if not short and not far_short:
            continue
        missing = f" of {loader.length:,}" if loader.length is not None else ""
        yield rule.finding(
            f"WeightedRandomSampler holds {loader.weights:,} weights, so {loader.loader} only draws from the first "
            f"{loader.weights:,}{missing} examples, {loader.draws or 0:,} times in a pass.",
            cause="The sampler draws indices from 0 to len(weights) - 1. Weights of classes must first be turned into "
            "one weight for each example.",
            fix="Pass one weight for each example: WeightedRandomSampler(class_weights[labels], len(labels)).",
            subject=Subject("loop", loader.loader),
            place=loader.place,
            evidence=[
                Evidence("weights", loader.weights),
                Evidence("examples drawn in a pass", loader.draws or 0),
                *([Evidence("examples in the data set", loader.length)] if loader.length is not None else []),
            ],
        )
