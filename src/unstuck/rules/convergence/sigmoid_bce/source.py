"""O13 in the source: every path into a binary loss ends in a sigmoid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.findings import Finding, Fix, Severity, Subject
from unstuck.rules.convergence.sigmoid_bce import PLAIN, SATURATED, WITH_LOGITS, Input, rule, twice, use_raw_scores
from unstuck.rules.shared import losses
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, both, fix_with
from unstuck.source.trace import Happened
from unstuck.source.values import Tensor


def find(script: Script) -> Iterator[Finding]:
    """One finding for each loss call."""
    for call, makers in losses.training_losses(script, (WITH_LOGITS, PLAIN)):
        plain = losses.loss_name(call) == PLAIN
        guilty = ("sigmoid",) if plain else ("sigmoid", "hardsigmoid", "softmax")
        if not all(maker.op in guilty for maker in makers):
            continue
        made = losses.loss_object(call)
        loss = made.last if made is not None else losses.loss_name(call)
        first = makers[0]
        effect = ": saturated scores get no gradient." if plain else ", which applies a sigmoid itself."
        yield rule.finding(
            f"{first.op} comes before {loss}{effect}",
            cause=SATURATED if plain else twice(loss),
            fix=_fused(script, call, makers) if plain else _raw(script, call, makers, loss),
            subject=Subject.at("call", "binary cross-entropy", first.place, word="fed by"),
            place=first.place,
            related=(call.event.place,),
            severity=Severity.ADVICE if plain else None,
            variant=Input.BEFORE_BCE_LOSS if plain else Input.APPLIED_TWICE,
        )


def _raw(script: Script, call: Happened, makers: Sequence[Tensor], loss: str) -> Fix:
    editor = Editor(script)
    edits = losses.without(editor, makers[0]) if len(makers) == 1 and makers[0].op == "sigmoid" else None
    local = edits is not None and losses.stands_in(editor, makers[0], call)
    return fix_with(use_raw_scores(loss, instead=False), edits, "safe" if local else "unsafe")


def _fused(script: Script, call: Happened, makers: Sequence[Tensor]) -> Fix:
    """Edits only for a sigmoid inside the loss call: other code may rely on probabilities."""
    editor = Editor(script)
    edits = None
    if len(makers) == 1 and losses.stands_in(editor, makers[0], call):
        renamed = losses.renamed_loss(script, editor, call, WITH_LOGITS, "BCEWithLogitsLoss")
        edits = both(losses.without(editor, makers[0]), renamed)
    loss = "BCEWithLogitsLoss" if losses.loss_object(call) is not None else WITH_LOGITS
    return fix_with(use_raw_scores(loss, instead=True), edits, "safe")
