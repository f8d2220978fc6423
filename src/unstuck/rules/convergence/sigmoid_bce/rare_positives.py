"""O13, rare-positives: positives are so rare that the model predicts negative for every example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import LossCall
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.sigmoid_bce import WITH_LOGITS, Input, rule
from unstuck.rules.shared import dynamics, losses

RARE = 0.1
FEWEST_READS = 6
FEWEST_STEPS = 30
ENOUGH = 10
"""This many positives give a reliable share."""
NOTHING_LEARNED = 0.9
"""As a share of the loss of always predicting the share of positives."""


def find(record: Record) -> Iterator[Finding]:
    """Few positives, no `pos_weight`, and in the second half of the run none is predicted and nothing is learned."""
    if dynamics.trend(record).steps < FEWEST_STEPS or dynamics.alternating(record):
        return
    for calls in losses.trained(record.of(LossCall), (WITH_LOGITS,)):
        read = losses.looked_at(calls)
        late = read[len(read) // 2 :]
        if len(read) >= FEWEST_READS and all(_is_ignored(call) for call in late):
            targets = [losses.wanted(call) for call in read]
            total = sum(math.prod(target.shape) for target in targets)
            positive = sum((target.mean or 0.0) * math.prod(target.shape) for target in targets)
            if 0 < positive < RARE * total and _learned_nothing(late, positive / total):
                yield _finding(late, round(positive), total)


def _is_ignored(call: LossCall) -> bool:
    """Are all targets 0 or 1, without weights, and all scores below 0?"""
    target, scores = losses.wanted(call), losses.given(call)
    binary = losses.is_binary(target) or (target.low == 0 and target.high == 0)
    return binary and not call.weighted and call.reduction == "mean" and (scores.high or 0) < 0


def _learned_nothing(calls: Sequence[LossCall], share: float) -> bool:
    """Compared with that guess on the same targets, call by call, since only some batches contain positives."""
    known = [(call.value, losses.wanted(call).mean or 0.0) for call in calls if call.value is not None]
    guess = [-own * math.log(share) - (1 - own) * math.log(1 - share) for _, own in known]
    return bool(known) and sum(value for value, _ in known) > NOTHING_LEARNED * sum(guess)


def _finding(calls: Sequence[LossCall], positive: int, total: int) -> Finding:
    share = positive / total
    weight = (1 - share) / share
    number = f"torch.tensor({weight:.3g})" if positive >= ENOUGH else "torch.tensor(negatives / positives)"
    return rule.finding(
        f"{positive} of {total} sampled targets are positive, and the model predicts none: its scores stay below "
        f"{max(losses.given(call).high or 0 for call in calls):.3g}.",
        cause="Without pos_weight the few positives weigh so little that predicting their share for every example is "
        "the quickest way to a low loss, and training has stopped there.",
        fix=f"Pass pos_weight={number} to the loss, the number of negatives per positive in the data.",
        subject=Subject.at("call", "rare positives", calls[0].place),
        place=calls[0].place,
        evidence=[
            Evidence("positive targets", round(100 * share, 2), "%"),
            Evidence("negatives per positive", round(weight, 1)),
            Evidence("loss", round(calls[-1].value or 0, 4)),
            Evidence("loss of predicting the share", round(losses.entropy((share, 1 - share)), 4)),
        ],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Input.RARE_POSITIVES,
    )
