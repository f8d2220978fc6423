"""R08: the model predicts the same for every example, and the loss does not fall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from unstuck.events import Gauges, LossCall
from unstuck.events.losses import CLASS_LOSSES, VALUE_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.outcome import Achieved
from unstuck.record.trend import Direction, trend_of
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses

rule = Rule(
    code="R08",
    name="constant-output",
    title="predictions barely depend on the example, or collapse to one class",
    severity=Severity.WARNING,
    needs=(LossCall, Gauges),
    needs_one_optimizer=True,
)

LOSSES = (*CLASS_LOSSES, "binary_cross_entropy_with_logits", *VALUE_LOSSES)
FEWEST_STEPS = 50
"""A model that has just begun answers the same for every example, too."""
FEWEST_READS = 3
FEWEST_EXAMPLES = 16
BARELY = 0.05
"""Spread between examples, as a share of the targets' spread; for scores, of a decisive score."""
ONE_SIDED = 0.8
"""If this share of the targets is equal, predicting it for all is not a collapse."""
NOTHING_LEARNED = 0.95
"""Share of the loss of a model that only knows how often each target occurs."""
LONG_ENOUGH = 200
"""Steps after which a loss equal to guessing is reported even though predictions differ."""
HARDLY_WORSE = 1.1
"""A loss above this share of the entropy of the labels is worse than guessing, which has other reasons."""
LABELS_PER_CLASS = 10
LATE = 0.6
"""The share of the run that the examined calls must cover."""
CAUSE = (
    "The inputs do not reach the output. Possible reasons: inputs without information (constant, shuffled "
    "separately from their targets, not normalised), dead units, a loss that is lowest for one answer, or a "
    "learning rate that is too high."
)
FIX = (
    "Look at one batch right before the model: do inputs and targets match? Test whether the model can fit "
    "two examples, then check for dead units and the learning rate."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Uses the second half of a run whose loss does not fall."""
    if dynamics.alternating(record) or dynamics.trend(record).steps < FEWEST_STEPS or dynamics.learns(record):
        return
    for calls in losses.trained(record.of(LossCall), LOSSES):
        stays = _stays(calls[len(calls) // 2 :]) and _reach_the_end(calls, record)
        if not (dynamics.is_unhealthy(record) or stays):
            continue
        read = [call for call in losses.looked_at(calls) if _is_telling(call)]
        late = read[len(read) // 2 :]
        if len(late) < FEWEST_READS:
            continue
        if all(_is_constant(call) for call in late):
            yield _finding(late, "predictions barely depend on the example", _how_constant(late))
        elif all(_is_collapsed(call) for call in late):
            yield _finding(late, "every example of a batch gets the same class", _which_class(late))
        elif dynamics.trend(record).steps >= LONG_ENOUGH and _guesses(record, read):
            yield _finding(_second_half(calls), "predictions are no better than guessing", _how_often(read))


def _reach_the_end(calls: Sequence[LossCall], record: Record) -> bool:
    """If few steps are recorded, all calls may be early and say nothing about the rest of the run."""
    counted = calls[-1].step > calls[0].step and record.losses
    return not counted or calls[-1].step >= LATE * record.losses[-1][0]


def _stays(calls: Sequence[LossCall]) -> bool:
    """Has this loss stopped falling, perhaps after learning a bias?"""
    return trend_of(dynamics.known([call.value for call in calls])).word in (*dynamics.UNHEALTHY, Direction.CRAWLING)


def _is_telling(call: LossCall) -> bool:
    """Are there enough examples, with different targets, and was nothing learned about them?"""
    given, target = losses.given(call), losses.wanted(call)
    size = target.shape[0] if target.shape else 0
    if size < FEWEST_EXAMPLES or given.between is None or call.weighted:
        return False
    if target.classes is not None:
        shares = target.classes.counts.values()
        mixed = max(shares, default=0) < ONE_SIDED * target.classes.total
        return mixed and _is_at_least(call, losses.entropy(shares))
    if call.loss.startswith("binary"):
        share = target.mean or 0.0
        mixed = losses.is_binary(target) and 1 - ONE_SIDED < share < ONE_SIDED
        return mixed and _is_at_least(call, losses.entropy((share, 1 - share)))
    known = target.spread**2 if call.loss == "mse_loss" and target.spread else 0.0
    return bool(target.between) and _is_at_least(call, known)


def _is_at_least(call: LossCall, known: float) -> bool:
    return call.reduction == "mean" and call.value is not None and call.value >= NOTHING_LEARNED * known


def _is_constant(call: LossCall) -> bool:
    given, target = losses.given(call), losses.wanted(call)
    measure = (target.between or 0.0) if call.loss in VALUE_LOSSES else 1.0
    return given.between is not None and given.between < BARELY * measure


def _is_collapsed(call: LossCall) -> bool:
    given = losses.given(call)
    if call.loss.startswith("binary"):
        return given.low is not None and given.high is not None and (given.low > 0 or given.high < 0)
    return given.classes is not None and given.classes.distinct == 1 and given.classes.total >= FEWEST_EXAMPLES


def _guesses(record: Record, read: Sequence[LossCall]) -> bool:
    """Does a long run end where only knowing how often each class occurs would have got it?"""
    outcome, labels = dynamics.outcome(record), _labels(read)
    if outcome is None or sum(labels.values()) < LABELS_PER_CLASS * max(2, len(labels)):
        return False
    at_most = HARDLY_WORSE * losses.entropy(labels.values())
    return outcome.word is Achieved.GUESSES and outcome.last is not None and outcome.last <= at_most


def _second_half(calls: Sequence[LossCall]) -> list[LossCall]:
    return [call for call in calls if call.step >= calls[-1].step / 2]


def _labels(read: Sequence[LossCall]) -> Counter[int]:
    """How often each class occurred; empty if there are too many classes to count."""
    seen: Counter[int] = Counter()
    for call in read:
        classes = losses.wanted(call).classes
        if classes is None or classes.distinct > len(classes.counts):
            return Counter()
        seen.update(classes.counts)
    return seen


def _how_often(read: Sequence[LossCall]) -> list[Evidence]:
    labels = _labels(read)
    return [
        Evidence("loss of guessing", float(f"{losses.entropy(labels.values()):.3g}")),
        Evidence("classes among the labels", len(labels)),
    ]


def _how_constant(calls: Sequence[LossCall]) -> list[Evidence]:
    given, target = losses.given(calls[-1]), losses.wanted(calls[-1])
    evidence = [Evidence("spread of predictions between examples", float(f"{given.between or 0:.3g}"))]
    if target.between is not None:
        evidence.append(Evidence("spread of targets between examples", float(f"{target.between:.3g}")))
    return evidence


def _which_class(calls: Sequence[LossCall]) -> list[Evidence]:
    given, target = losses.given(calls[-1]), losses.wanted(calls[-1])
    evidence = []
    if given.classes is not None:
        evidence.append(Evidence("class predicted", next(iter(given.classes.counts))))
    if target.classes is not None:
        evidence.append(Evidence("classes among the labels", target.classes.distinct))
    return evidence


def _when(calls: Sequence[LossCall]) -> str:
    # A program that updates its weights by hand has no steps to count.
    counted = calls[-1].step > calls[0].step
    return f"From step {calls[0].step + 1} on" if counted else f"In {len(calls)} calls late in the run"


def _finding(calls: Sequence[LossCall], what: str, evidence: list[Evidence]) -> Finding:
    last = calls[-1]
    level = dynamics.median(dynamics.known([call.value for call in calls])) or 0.0
    return rule.finding(
        f"{_when(calls)} {what}, and the loss stays at {level:.3g}.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject.at("call", "predictions", last.place),
        place=last.place,
        evidence=[*evidence, Evidence("calls examined", len(calls))],
        confidence=Confidence.LIKELY,
    )
