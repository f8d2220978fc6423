"""R08: the model predicts the same for every example, and the loss does not fall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Gauges, LossCall, TensorFact
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record.trend import trend_of
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, loss_calls

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="R08",
    name="constant-output",
    title="predictions barely depend on the example, or collapse to one class",
    severity=Severity.WARNING,
    needs=(LossCall, Gauges),
)

LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", *loss_calls.REGRESSIONS)
FEWEST_STEPS = 30
FEWEST_READS = 3
FEWEST_EXAMPLES = 16
BARELY = 0.05
"""Spread from example to example, as a share of that of the targets; for scores, of a score that decides anything."""
ONE_SIDED = 0.8
"""Where so many targets are alike, predicting just that for all is no collapse."""
NOTHING_LEARNED = 0.95
"""Of the loss of a model that knows only how often each target occurs."""
LONG_ENOUGH = 200
"""Steps after which a loss that is still the one of guessing is worth a word, though predictions differ."""
GUESSING = (0.98, 1.1)
"""Where that loss lies, as a share of the entropy of the labels."""
LABELS_PER_CLASS = 10
LATE = 0.6
"""Of the steps of the run, how far the calls looked at must reach."""
CAUSE = (
    "What the model was given does not reach its output: inputs that carry nothing (constant, shuffled apart from "
    "their targets, not normalised), dead units, a loss best served by one answer, or a rate that drove it there."
)
FIX = (
    "Look at one batch right before the model (inputs and targets belong together?), and see whether the model can fit "
    "two examples; then look at dead units and the learning rate."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Over the second half of a run, in which the loss does not fall."""
    if dynamics.alternating(record) or dynamics.trend(record).steps < FEWEST_STEPS:
        return
    for calls in loss_calls.trained(record.of(LossCall), LOSSES):
        stays = _stays(calls[len(calls) // 2 :]) and _reach_the_end(calls, record)
        if not (dynamics.suffers(record) or stays):
            continue
        read = [call for call in loss_calls.looked_at(calls) if _is_telling(call)]
        late = read[len(read) // 2 :]
        if len(late) < FEWEST_READS:
            continue
        if all(_is_constant(call) for call in late):
            yield _finding(late, "predictions barely depend on the example", _how_constant(late))
        elif all(_is_collapsed(call) for call in late):
            yield _finding(late, "every example of a batch is predicted to be the same class", _which_class(late))
        elif dynamics.trend(record).steps >= LONG_ENOUGH and _guesses(calls, read):
            yield _finding(_second_half(calls), "predictions are no better than a guess", _how_often(read))


def _reach_the_end(calls: Sequence[LossCall], record: Record) -> bool:
    """Where recorded steps are rare, the calls may all be early ones, and tell nothing of how the run went on."""
    counted = calls[-1].step > calls[0].step and record.losses
    return not counted or calls[-1].step >= LATE * record.losses[-1][0]


def _stays(calls: Sequence[LossCall]) -> bool:
    """Does this loss no longer fall, having perhaps learned a bias before?"""
    return trend_of(dynamics.known([call.value for call in calls])).word in (*dynamics.SUFFERING, "crawling")


def _is_telling(call: LossCall) -> bool:
    """Are there enough examples, with targets that differ, and has nothing been learned of them?"""
    given, target = loss_calls.given(call), loss_calls.wanted(call)
    size = target.shape[0] if target.shape else 0
    if size < FEWEST_EXAMPLES or given.between is None or call.weighted:
        return False
    if target.classes is not None:
        shares = target.classes.counts.values()
        mixed = max(shares, default=0) < ONE_SIDED * target.classes.total
        return mixed and _is_at_least(call, loss_calls.entropy(shares))
    if call.loss.startswith("binary"):
        share = target.mean or 0.0
        mixed = loss_calls.is_binary(target) and 1 - ONE_SIDED < share < ONE_SIDED
        return mixed and _is_at_least(call, loss_calls.entropy((share, 1 - share)))
    known = target.spread**2 if call.loss == "mse_loss" and target.spread else 0.0
    return bool(target.between) and _is_at_least(call, known)


def _is_at_least(call: LossCall, known: float) -> bool:
    return call.reduction == "mean" and call.value is not None and call.value >= NOTHING_LEARNED * known


def _is_constant(call: LossCall) -> bool:
    given, target = loss_calls.given(call), loss_calls.wanted(call)
    measure = (target.between or 0.0) if call.loss in loss_calls.REGRESSIONS else 1.0
    return given.between is not None and given.between < BARELY * measure


def _is_collapsed(call: LossCall) -> bool:
    given = loss_calls.given(call)
    if call.loss.startswith("binary"):
        return _one_side(given)
    return given.classes is not None and given.classes.distinct == 1 and given.classes.total >= FEWEST_EXAMPLES


def _one_side(scores: TensorFact) -> bool:
    return scores.low is not None and scores.high is not None and (scores.low > 0 or scores.high < 0)


def _guesses(calls: Sequence[LossCall], read: Sequence[LossCall]) -> bool:
    """Is the loss, late in a long run, the one of knowing only how often each class occurs?"""
    labels = _labels(read)
    middle = dynamics.median(dynamics.known([call.value for call in _second_half(calls)]))
    if middle is None or sum(labels.values()) < LABELS_PER_CLASS * max(2, len(labels)):
        return False
    lowest, highest = (share * loss_calls.entropy(labels.values()) for share in GUESSING)
    return lowest <= middle <= highest


def _second_half(calls: Sequence[LossCall]) -> list[LossCall]:
    return [call for call in calls if call.step >= calls[-1].step / 2]


def _labels(read: Sequence[LossCall]) -> Counter[int]:
    """How often each class occurred; nothing where there are so many classes that not all were counted."""
    seen: Counter[int] = Counter()
    for call in read:
        classes = loss_calls.wanted(call).classes
        if classes is None or classes.distinct > len(classes.counts):
            return Counter()
        seen.update(classes.counts)
    return seen


def _how_often(read: Sequence[LossCall]) -> list[Evidence]:
    labels = _labels(read)
    return [
        Evidence("loss of guessing", float(f"{loss_calls.entropy(labels.values()):.3g}")),
        Evidence("classes among the labels", len(labels)),
    ]


def _how_constant(calls: Sequence[LossCall]) -> list[Evidence]:
    given, target = loss_calls.given(calls[-1]), loss_calls.wanted(calls[-1])
    evidence = [Evidence("spread of predictions between examples", float(f"{given.between or 0:.3g}"))]
    if target.between is not None:
        evidence.append(Evidence("spread of targets between examples", float(f"{target.between:.3g}")))
    return evidence


def _which_class(calls: Sequence[LossCall]) -> list[Evidence]:
    given, target = loss_calls.given(calls[-1]), loss_calls.wanted(calls[-1])
    evidence = []
    if given.classes is not None:
        evidence.append(Evidence("class predicted", next(iter(given.classes.counts))))
    if target.classes is not None:
        evidence.append(Evidence("classes among the labels", target.classes.distinct))
    return evidence


def _when(calls: Sequence[LossCall]) -> str:
    # A program that updates its weights by hand takes no steps that could be counted.
    counted = calls[-1].step > calls[0].step
    return f"From step {calls[0].step + 1} on" if counted else f"In {len(calls)} calls late in the run"


def _finding(calls: Sequence[LossCall], what: str, evidence: list[Evidence]) -> Finding:
    last = calls[-1]
    level = dynamics.median(dynamics.known([call.value for call in calls])) or 0.0
    return rule.finding(
        f"{_when(calls)} {what}, and the loss stays at {level:.3g}.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject("call", f"predictions at {last.place}"),
        place=last.place,
        evidence=[*evidence, Evidence("calls looked at", len(calls))],
        confidence=Confidence.LIKELY,
    )
