"""O13: a sigmoid before a loss that applies one itself, or before BCELoss, where it saturates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unstuck.events import LossCall, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.record import Record
from unstuck.rule import Remedies, Rule, find_in


class Input(Variant):
    """What is wrong with what a binary loss gets."""

    APPLIED_TWICE = "applied-twice", "a sigmoid before a loss that applies one itself"
    BEFORE_BCE_LOSS = "before-bce-loss", "a sigmoid before BCELoss, where it saturates"
    NOT_PROBABILITIES = "not-probabilities", "BCELoss gets predictions outside 0 to 1"
    TARGETS_OUT_OF_RANGE = "targets-out-of-range", "the targets are outside 0 to 1"
    RARE_POSITIVES = "rare-positives", "positives are rare and the model predicts none"


rule = Rule(
    code="O13",
    name="sigmoid-bce",
    title="sigmoid before BCEWithLogitsLoss, which applies it again, or before BCELoss, where it saturates",
    severity=Severity.ERROR,
    explains=("O01", "O07", "G09", "O22", "R08"),
    needs=(LossCall,),
    variants=Input.titles(),
)

WITH_LOGITS, PLAIN = "binary_cross_entropy_with_logits", "binary_cross_entropy"
SATURATED = (
    "In float32 a sigmoid is exactly 1 for scores above about 17; binary_cross_entropy then clamps the loss to 100 and "
    "the gradient is 0, so an example that is far wrong teaches nothing. BCEWithLogitsLoss does not saturate."
)


def twice(loss: str) -> str:
    """Why a sigmoid before this loss is wrong."""
    return (
        f"{loss} expects raw scores and applies a sigmoid itself; the sigmoid of a number in [0, 1] is between 0.5 and "
        "0.73, so a negative example never costs less than 0.69, and little of the gradient gets through."
    )


def use_raw_scores(loss: str, *, instead: bool) -> str:
    """Pass raw scores to this loss, which is already in use or is to be used instead."""
    if instead:
        return f"Pass the raw scores to {loss}, which applies the sigmoid in a stable way."
    return f"Pass the raw scores to {loss}, and apply sigmoid only where you need probabilities."


rule.in_source(find_in("unstuck.rules.convergence.sigmoid_bce.source"))


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """The probed batch went through a sigmoid before the loss."""
    from unstuck.rules.convergence.sigmoid_bce import calls

    return calls.find(setup.losses)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The input of the loss is not a probability or came from a sigmoid, or only the negatives were learned."""
    from unstuck.rules.convergence.sigmoid_bce import calls, crash, rare_positives

    yield from crash.explain(record)
    yield from calls.find(record.of(LossCall))
    yield from rare_positives.find(record)


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Pass logits to the loss."""
    from unstuck.interventions import GiveLoss

    if finding.variant in (Input.APPLIED_TWICE, Input.BEFORE_BCE_LOSS):
        yield (GiveLoss("undo-sigmoid"),)
