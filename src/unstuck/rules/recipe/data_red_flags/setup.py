"""R09 in one batch before training, and the findings that a run shares with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import BatchSeen, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rules.recipe import init_loss
from unstuck.rules.recipe.data_red_flags import Flag, rule

LARGE, SMALL = 20.0, 1e-3
"""Sizes of inputs beyond which the first layer starts badly; its weights are initialised for sizes about 1."""
BROKEN = "One NaN in an input makes the loss and every gradient NaN, and after the next step every weight."
CLEAN = "Look for missing values, the logarithm of 0 and division by a standard deviation of 0 in the preprocessing."
SCALE = "Initial weights are scaled for inputs of size about 1; these make the first layer's outputs and gradients {}."
RESCALE = (
    "Normalise the inputs to mean 0 and standard deviation 1 (images: x / 255 first), in training and in evaluation."
)


def find(setup: Setup) -> Iterator[Finding]:
    """One batch before training: broken values, identical examples, sizes far from 1."""
    for batch in setup.batches:
        yield from _broken(batch)
        if batch.constant == 1.0 and batch.examples >= 4:
            yield identical([batch])
        yield from badly_scaled(batch, "")


def _broken(batch: BatchSeen) -> Iterator[Finding]:
    fact = batch.layer_input
    if fact is not None and fact.broken:
        yield rule.finding(
            f"{fact.broken:.2%} of the input of the first layer is NaN or infinite.",
            cause=BROKEN,
            fix=CLEAN,
            subject=Subject.at("call", "inputs", batch.place),
            place=batch.place,
            variant=Flag.BROKEN_VALUES,
        )


def identical(batches: Sequence[BatchSeen]) -> Finding:
    """Every example of each of these batches is the same."""
    batch = batches[0]
    return rule.finding(
        f"All {batch.examples} examples of a batch were exactly the same when {batch.model} received them.",
        cause="A model that gets the same input for every example can only give the same answer.",
        fix="Check that the dataset uses its index, and that nothing overwrites the examples later.",
        subject=Subject.at("call", "inputs", batch.place),
        place=batch.place,
        evidence=[Evidence("batches examined", len(batches)), Evidence("examples in a batch", batch.examples)],
        severity=Severity.WARNING,
        variant=Flag.IDENTICAL,
    )


def badly_scaled(batch: BatchSeen, consequence: str) -> Iterator[Finding]:
    """Inputs of the first layer whose size is far from 1."""
    fact = batch.layer_input
    if fact is None or fact.mean is None or fact.spread is None:
        return
    size = math.hypot(fact.mean, fact.spread)
    if SMALL < size < LARGE or size == 0.0:
        return
    large = size >= LARGE
    yield rule.finding(
        f"{batch.layer or batch.model} receives inputs from {fact.low:.4g} to {fact.high:.4g}"
        + init_loss.large_column(fact)
        + (f", and {consequence}." if consequence else "."),
        cause=SCALE.format("too large" if large else "vanishingly small"),
        fix=RESCALE,
        subject=Subject.at("call", "scale of inputs", batch.place),
        place=batch.place,
        evidence=[Evidence("root mean square of the inputs", size, threshold=LARGE if large else SMALL)],
        severity=Severity.WARNING if consequence else Severity.ADVICE,
        confidence=Confidence.LIKELY,
        variant=Flag.SCALE,
    )
