"""O13: a sigmoid before a loss that applies one itself, or before BCELoss, where it saturates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import LossCall, Setup
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.convergence import _crashed_probabilities
from unstuck.rules.convergence._rare_positives import rare_positives
from unstuck.rules.shared import losses as loss_calls, losses as predictions
from unstuck.source.edits.edit import Editor, both, fix_with
from unstuck.source.trace import Happened
from unstuck.source.values import Tensor

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

SLACK = 1e-3
"""Rounding may carry a target so far beyond 0 or 1."""

rule = Rule(
    code="O13",
    name="sigmoid-bce",
    title="sigmoid before BCEWithLogitsLoss, which applies it again, or before BCELoss, where it saturates",
    severity=Severity.ERROR,
    explains=("O01", "O07", "G09", "O22", "R08"),
    needs=(LossCall,),
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
SQUASHERS = {"SigmoidBackward0": "sigmoid", "HardsigmoidBackward0": "hardsigmoid", "SoftmaxBackward0": "softmax"}
STEADY_CALLS = 5
SATURATION = 0.9
"""A smaller share of the gradient than this gets through only when scores are wrong and saturated."""
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


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The probed batch went through a sigmoid on its way to the loss."""
    yield from _from_calls(setup.losses)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """What the loss was given is no probability or came out of a sigmoid; or only the many negatives were learned."""
    yield from _crashed_probabilities.explain(record, rule)
    yield from _from_calls(record.of(LossCall))
    yield from rare_positives(record, rule)


def _from_calls(calls: Iterable[LossCall]) -> Iterator[Finding]:
    for group in loss_calls.trained(calls, (WITH_LOGITS, PLAIN)):
        plain = group[0].loss == PLAIN
        if outside := _target_outside(group):
            yield _impossible_target(group, outside)
            continue
        made_by = loss_calls.all_made_by(group, ("SigmoidBackward0",) if plain else SQUASHERS)
        if made_by:
            yield _seen(group, SQUASHERS[made_by], plain)
        elif not plain and _is_compiled_probability(group):
            yield _seen(group, "", plain)


def _target_outside(calls: Sequence[LossCall]) -> tuple[float, float] | None:
    """The range of the targets, if it leaves 0 to 1."""
    ranges = [(call.target.low, call.target.high) for call in calls if call.target is not None]
    lows, highs = [low for low, _ in ranges if low is not None], [high for _, high in ranges if high is not None]
    if not lows or not highs or (min(lows) >= -SLACK and max(highs) <= 1 + SLACK):
        return None
    return min(lows), max(highs)


def _impossible_target(calls: Sequence[LossCall], span: tuple[float, float]) -> Finding:
    first = calls[0]
    return rule.finding(
        f"{first.loss} is given targets from {span[0]:.4g} to {span[1]:.4g}, which are no probabilities.",
        cause="With a target outside 0 to 1 binary cross entropy has no minimum: it falls without end.",
        fix="Bring the targets into 0 to 1 (for images: no Normalize before the loss), or use mse_loss.",
        subject=Subject("target", first.loss),
        place=first.place,
        evidence=[Evidence("calls seen", len(calls)), Evidence("target range", f"{span[0]:.4g} to {span[1]:.4g}")],
        severity=Severity.ERROR,
    )


def _is_compiled_probability(calls: Sequence[LossCall]) -> bool:
    """Inside a compiled model operations have no names, but scores do not stay between 0 and 1 for long."""
    read = loss_calls.looked_at(calls)
    facts = [loss_calls.given(call) for call in read]
    inside = all((fact.low or 0) > 0 and (fact.high or 1) < 1 for fact in facts)
    compiled = all(fact.made_by.startswith("CompiledFunctionBackward") for fact in facts)
    return len(read) >= STEADY_CALLS and inside and compiled


def _seen(calls: Sequence[LossCall], maker: str, plain: bool) -> Finding:
    first = calls[0]
    kept = [call.gradient_kept for call in calls if call.gradient_kept is not None]
    share = min(kept) if plain and kept else sorted(kept)[len(kept) // 2] if kept else None
    saturated = plain and share is not None and share < SATURATION
    given = f"the output of {maker}" if maker else "numbers between 0 and 1 only"
    lost = f" {100 * (1 - share):.3g} % of the gradient is lost." if share is not None and share < SATURATION else ""
    said = "saturated scores get no gradient." if plain else "and applies a sigmoid itself."
    evidence = [Evidence("calls seen", len(calls)), *loss_calls.shape_and_range(first)]
    if share is not None:
        evidence.append(Evidence("gradient that gets through", round(100 * share, 1), "%"))
    return rule.finding(
        f"{first.loss} is given {given}{':' if plain else ','} {said}{lost}",
        cause=SATURATED[0].upper() + SATURATED[1:] if plain else f"{first.loss} wants raw scores: {TWICE}",
        fix=(FUSED if plain else RAW).format(loss=WITH_LOGITS),
        subject=Subject("call", f"binary cross-entropy fed by {first.place}"),
        place=first.place,
        evidence=evidence,
        severity=(Severity.WARNING if saturated else Severity.ADVICE) if plain else None,
        confidence=Confidence.CERTAIN if maker else Confidence.LIKELY,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The loss is given logits."""
    from unstuck.interventions import GiveLoss

    yield (GiveLoss("undo-sigmoid"),)
