"""O13 in loss calls, of a run or of a probed batch: what made their input, and the range of their targets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unstuck.events import LossCall
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rules.convergence.sigmoid_bce import PLAIN, SATURATED, WITH_LOGITS, Input, rule, twice, use_raw_scores
from unstuck.rules.shared import losses

SLACK = 1e-3
"""Rounding may carry a target this far outside 0 to 1."""
SQUASHERS = {"SigmoidBackward0": "sigmoid", "HardsigmoidBackward0": "hardsigmoid", "SoftmaxBackward0": "softmax"}
STEADY_CALLS = 5
SATURATION = 0.9
"""The share of the gradient that gets through is lower only if scores are wrong and saturated."""


def find(calls: Iterable[LossCall]) -> Iterator[Finding]:
    """One finding for each line with a binary loss."""
    for group in losses.trained(calls, (WITH_LOGITS, PLAIN)):
        plain = group[0].loss == PLAIN
        if outside := _target_outside(group):
            yield _impossible_target(group, *outside)
            continue
        made_by = losses.all_made_by(group, ("SigmoidBackward0",) if plain else SQUASHERS)
        if made_by:
            yield _after_sigmoid(group, SQUASHERS[made_by], plain)
        elif not plain and _is_compiled_probability(group):
            yield _after_sigmoid(group, "", plain)


def _target_outside(calls: Sequence[LossCall]) -> tuple[float, float] | None:
    """The range of the targets, if it is not within 0 to 1."""
    ranges = [(call.target.low, call.target.high) for call in calls if call.target is not None]
    lows, highs = [low for low, _ in ranges if low is not None], [high for _, high in ranges if high is not None]
    if not lows or not highs or (min(lows) >= -SLACK and max(highs) <= 1 + SLACK):
        return None
    return min(lows), max(highs)


def _impossible_target(calls: Sequence[LossCall], low: float, high: float) -> Finding:
    first = calls[0]
    return rule.finding(
        f"{first.loss} gets targets from {low:.4g} to {high:.4g}, which are not probabilities.",
        cause="With a target outside 0 to 1, binary cross-entropy has no minimum and falls forever.",
        fix="Bring the targets into 0 to 1 (for images: no Normalize before the loss), or use mse_loss.",
        subject=Subject("target", first.loss),
        place=first.place,
        evidence=[Evidence("calls seen", len(calls)), Evidence("target range", f"{low:.4g} to {high:.4g}")],
        severity=Severity.ERROR,
        variant=Input.TARGETS_OUT_OF_RANGE,
    )


def _is_compiled_probability(calls: Sequence[LossCall]) -> bool:
    """Operations inside a compiled model have no names, but raw scores do not stay between 0 and 1 for long."""
    read = losses.looked_at(calls)
    facts = [losses.given(call) for call in read]
    inside = all((fact.low or 0) > 0 and (fact.high or 1) < 1 for fact in facts)
    compiled = all(fact.made_by.startswith("CompiledFunctionBackward") for fact in facts)
    return len(read) >= STEADY_CALLS and inside and compiled


def _after_sigmoid(calls: Sequence[LossCall], maker: str, plain: bool) -> Finding:
    first = calls[0]
    passed = sorted(call.gradient_kept for call in calls if call.gradient_kept is not None)
    share = (passed[0] if plain else passed[len(passed) // 2]) if passed else None
    saturated = share is not None and share < SATURATION
    given = f"the output of {maker}" if maker else "only numbers between 0 and 1"
    lost = f" {100 * (1 - share):.3g} % of the gradient is lost." if share is not None and saturated else ""
    effect = ": saturated scores get no gradient." if plain else " and applies a sigmoid itself."
    evidence = [Evidence("calls seen", len(calls)), *losses.shape_and_range(first)]
    if share is not None:
        evidence.append(Evidence("gradient that gets through", round(100 * share, 1), "%"))
    return rule.finding(
        f"{first.loss} gets {given}{effect}{lost}",
        cause=SATURATED if plain else twice(first.loss),
        fix=use_raw_scores(WITH_LOGITS, instead=plain),
        subject=Subject.at("call", "binary cross-entropy", first.place, word="fed by"),
        place=first.place,
        evidence=evidence,
        severity=(Severity.WARNING if saturated else Severity.ADVICE) if plain else None,
        confidence=Confidence.CERTAIN if maker else Confidence.LIKELY,
        variant=Input.BEFORE_BCE_LOSS if plain else Input.APPLIED_TWICE,
    )
