"""O13: a sigmoid before a loss that applies one itself, or before BCELoss, where it saturates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.findings import Finding, Fix, Severity, Subject, Witness
from unstuck.rule import Rule
from unstuck.rules import predictions
from unstuck.source.edit import Editor, both, fix_with
from unstuck.source.trace import Happened
from unstuck.source.values import Tensor

if TYPE_CHECKING:
    from unstuck.source import Script

rule = Rule(
    code="O13",
    name="sigmoid-bce",
    title="sigmoid before BCEWithLogitsLoss, which applies it again, or before BCELoss, where it saturates",
    severity=Severity.ERROR,
    explains=("O01", "O07", "G09", "O22", "R08"),
)

WITH_LOGITS, PLAIN = "binary_cross_entropy_with_logits", "binary_cross_entropy"
TWICE = (
    "it applies a sigmoid itself, and the sigmoid of a number in [0, 1] lies between 0.5 and 0.73: a negative example "
    "can never cost less than 0.69, and little of the gradient gets through."
)
SATURATED = (
    "a sigmoid is exactly 1 in float32 from a score of about 17 on; binary_cross_entropy then clamps the loss to 100 "
    "and the gradient is 0, so an example that is wrong by far teaches nothing. BCEWithLogitsLoss has no such edge."
)
RAW = "Give {loss} the raw scores, and apply sigmoid only where probabilities are shown."
FUSED = "Give the raw scores to {loss}, which applies sigmoid in a stable way."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Every way into the loss ends in a sigmoid."""
    for call, makers in predictions.training_losses(script, (WITH_LOGITS, PLAIN)):
        loss = predictions.loss_name(call)
        guilty = ("sigmoid",) if loss == PLAIN else ("sigmoid", "hardsigmoid", "softmax")
        if all(maker.op in guilty for maker in makers):
            yield _finding(script, call, makers)


def _finding(script: Script, call: Happened, makers: Sequence[Tensor]) -> Finding:
    first, plain = makers[0], predictions.loss_name(call) == PLAIN
    loss = _written(call)
    before = f"{first.op} stands before {loss}"
    return rule.finding(
        Witness.SOURCE,
        f"{before}: saturated scores get no gradient." if plain else f"{before}, which applies a sigmoid itself.",
        cause=SATURATED[0].upper() + SATURATED[1:] if plain else f"{loss} wants raw scores: {TWICE}",
        fix=_fused(script, call, makers) if plain else _raw(script, call, makers),
        subject=Subject("call", f"binary cross-entropy fed by {first.place}"),
        place=first.place,
        related=(call.event.place,),
        severity=Severity.ADVICE if plain else None,
    )


def _written(call: Happened) -> str:
    """The loss as the user wrote it."""
    made = predictions.loss_object(call)
    return made.last if made is not None else predictions.loss_name(call)


def _raw(script: Script, call: Happened, makers: Sequence[Tensor]) -> Fix:
    editor = Editor(script)
    edits = predictions.without(editor, makers[0]) if len(makers) == 1 and makers[0].op == "sigmoid" else None
    local = edits is not None and predictions.stands_in(editor, makers[0], call)
    return fix_with(RAW.format(loss=_written(call)), edits, "safe" if local else "unsafe")


def _fused(script: Script, call: Happened, makers: Sequence[Tensor]) -> Fix:
    """Only where the sigmoid stands in the loss call: elsewhere somebody may count on probabilities."""
    editor = Editor(script)
    edits = None
    if len(makers) == 1 and predictions.stands_in(editor, makers[0], call):
        renamed = predictions.renamed_loss(script, editor, call, WITH_LOGITS, "BCEWithLogitsLoss")
        edits = both(predictions.without(editor, makers[0]), renamed)
    loss = "BCEWithLogitsLoss" if predictions.loss_object(call) is not None else WITH_LOGITS
    return fix_with(FUSED.format(loss=loss), edits, "safe")
