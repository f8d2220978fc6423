"""R02: the last bias starts at 0 far from the targets, and the run is spent learning one number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from unstuck.events import LossCall, ModelSeen, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses

rule = Rule(
    code="R02",
    name="final-bias",
    title="the last bias is not initialised to the mean of the targets or the class frequencies",
    severity=Severity.WARNING,
    needs=(LossCall,),
    needs_fresh_weights=True,
    needs_one_optimizer=True,
)

FAR = 2.0
"""Distance of the mean prediction from the mean target, in standard deviations of the targets."""
OWN = 0.5
"""How far the first predictions may be from 0, as a share of that distance."""
RARE = 0.1
SKEWED = 0.5
"""Share of log(classes) below which the entropy of the labels is far from even."""
LABELS_PER_CLASS = 20
MOST_CLASSES = 32
LONG = 0.2
MOST = 0.5
"""Shares of a run spent on it."""
LEARNED = 0.5
"""A loss that ends below this share of what the bias alone reaches has learned the rest too."""
FEWEST_STEPS = 20
FEWEST_WASTED = 10
FEWEST_BATCHES = 5
"""Steps whose targets must be known before the rule judges them all."""
CAUSE = (
    "Setting the bias costs nothing. Learning it takes all these steps, because the gradients of all examples "
    "point the same way and hide what distinguishes them. The loss curve looks like a hockey stick."
)


class Bias(msgspec.Struct, frozen=True):
    """The right initial value of the last bias, and what it saves."""

    value: str
    because: str
    start: float
    known: float
    """The loss of a model that knows only this."""
    reached: float
    """A loss below this has learned it."""


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The first predictions of the probed batch against its targets."""
    for calls in losses.trained(setup.losses, LOSSES):
        bias = _bias(calls, 1)
        if bias is not None:
            yield _finding(calls[0], bias, setup.models, "", Severity.ADVICE)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same, if a large part of the run was spent learning it."""
    if not losses.starts_fresh(record) or dynamics.alternating(record):
        return
    for calls in losses.trained(record.of(LossCall), LOSSES):
        bias = _bias(calls, FEWEST_BATCHES) if calls[0].step == 0 else None
        wasted = _wasted(calls, bias.reached) if bias is not None else None
        if bias is not None and wasted is not None:
            last = calls[-1].step
            all_of = wasted >= last
            words = f"all {last}" if all_of else f"the first {wasted} of {last}"
            learned = calls[-1].value is not None and calls[-1].value < LEARNED * bias.known
            severity = Severity.WARNING if wasted >= MOST * last and not learned else Severity.ADVICE
            yield _finding(calls[0], bias, record.of(ModelSeen), f" and {words} steps are spent on it", severity)


def _wasted(calls: Sequence[LossCall], reached: float) -> int | None:
    """How many steps it took, if that is a large part of the run."""
    last = calls[-1].step
    values = [(call.step, call.value) for call in calls if call.value is not None]
    if len(values) < FEWEST_STEPS:
        return None
    wasted = next((step for step, value in values if value <= reached), last)
    return wasted if wasted >= max(FEWEST_WASTED, LONG * last) else None


LOSSES = ("mse_loss", "cross_entropy", "binary_cross_entropy_with_logits")


def _bias(calls: Sequence[LossCall], batches: int) -> Bias | None:
    first = calls[0]
    has_bias = losses.given(first).made_by.startswith(("AddmmBackward", "ConvolutionBackward"))
    if not has_bias or first.reduction != "mean" or first.weighted or first.value is None:
        return None
    if first.loss == "mse_loss":
        found = [_of_values(same, batches) for same in _by_call_order(losses.looked_at(calls))]
        known = [bias for bias in found if bias is not None]
        return max(known, key=lambda bias: bias.reached) if known and len(known) == len(found) else None
    return _of_classes(calls, first.value) if first.loss == "cross_entropy" else _of_positives(calls, first.value)


def _by_call_order(calls: Sequence[LossCall]) -> list[list[LossCall]]:
    """One line may serve many time steps, each with its own targets: the first calls of all steps, the second..."""
    by_step: dict[int, list[LossCall]] = {}
    for call in calls:
        by_step.setdefault(call.step, []).append(call)
    steps = list(by_step.values())
    turns = range(len(steps[0]) if steps else 0)
    return [[step[turn] for step in steps if len(step) == len(steps[0])] for turn in turns]


def _of_values(calls: Sequence[LossCall], batches: int) -> Bias | None:
    """Uses the targets of all batches: those of one may be similar and far from the others."""
    given, first = losses.given(calls[0]), losses.wanted(calls[0])
    targets = [losses.wanted(call) for call in calls]
    means = [fact.mean for fact in targets if fact.mean is not None and fact.spread is not None]
    if given.mean is None or len(means) < max(batches, len(targets)) or given.shape != first.shape:
        return None
    mean = sum(means) / len(means)
    within = sum((fact.spread or 0.0) ** 2 for fact in targets) / len(targets)
    variance = within + sum((one - mean) ** 2 for one in means) / len(means)
    gap = mean - given.mean
    # Predictions that start far from 0 come from the weights and inputs: a bias would not fix them.
    if not variance or min(abs(gap), abs(mean)) ** 2 < FAR**2 * variance or abs(given.mean) > OWN * abs(gap):
        return None
    because = f"the targets have a mean of {mean:.3g}, the first predictions a mean of {given.mean:.2g}"
    return Bias(f"{mean:.3g}", because, calls[0].value or 0.0, variance, 2 * variance)


def _of_positives(calls: Sequence[LossCall], value: float) -> Bias | None:
    means = [losses.wanted(call).mean for call in losses.looked_at(calls)]
    share = sum(dynamics.known(means)) / max(1, len(means))
    if not losses.is_binary(losses.wanted(calls[0])) or not (0 < share < RARE or 1 - RARE < share < 1):
        return None
    known = losses.entropy((share, 1 - share))
    because = f"{100 * share:.2g} % of the targets are 1, but an untrained model predicts 50 %"
    return Bias(f"{math.log(share / (1 - share)):.3g}", because, value, known, 1.25 * known) if value > known else None


def _of_classes(calls: Sequence[LossCall], value: float) -> Bias | None:
    labels, classes = losses.labels(calls), losses.classes_of(calls[0])
    if not labels or not 2 <= classes <= MOST_CLASSES or sum(labels.values()) < LABELS_PER_CLASS * classes:
        return None
    known = losses.entropy(labels.values())
    if known > SKEWED * math.log(classes) or value < known:
        return None
    label, often = labels.most_common(1)[0]
    because = (
        f"{100 * often / sum(labels.values()):.3g} % of the labels are {label}, but an untrained model favours no class"
    )
    reached = known + 0.25 * (math.log(classes) - known)
    return Bias("torch.log(share_of_each_class)", because, value, known, reached)


def _finding(call: LossCall, bias: Bias, models: Iterable[ModelSeen], wasted: str, severity: Severity) -> Finding:
    name = _last_bias(models, losses.given(call).shape)
    filled = "copy_" if "torch" in bias.value else "fill_"
    return rule.finding(
        f"{bias.because[0].upper()}{bias.because[1:]}: the loss starts at {bias.start:.3g} instead of "
        f"{bias.known:.3g}{wasted}.",
        cause=CAUSE,
        fix=f"Set the bias of the last layer before training: model.{name}.data.{filled}({bias.value}).",
        subject=Subject("parameter", name),
        place=call.place,
        evidence=[
            Evidence("first loss", bias.start),
            Evidence("loss with the bias set", round(bias.known, 4)),
            Evidence("value to set", bias.value),
        ],
        severity=severity,
        confidence=Confidence.LIKELY,
    )


def _last_bias(models: Iterable[ModelSeen], shape: tuple[int, ...]) -> str:
    """The last bias of a model that is as wide as its output."""
    facts = [fact for model in models for fact in model.parameters if fact.name.endswith("bias")]
    fitting = [fact.name for fact in facts if len(fact.shape) == 1 and fact.shape[0] in shape[1:]]
    return fitting[-1] if fitting else "last_layer.bias"
