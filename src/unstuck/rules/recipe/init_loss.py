"""R01: the first loss is far above that of guessing, so the first steps only undo this."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from unstuck.events import BatchSeen, InputFact, LossCall, ModelSeen, Setup
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, losses

rule = Rule(
    code="R01",
    name="init-loss",
    title="the loss starts far above that of guessing",
    severity=Severity.WARNING,
    needs=(LossCall,),
    needs_fresh_weights=True,
)

LOSSES = (*CLASS_LOSSES, *BINARY_LOSSES, "mse_loss")
TIMES = 1.5
TIMES_SQUARED = 4.0
"""For squared errors, which a few outliers can double."""
CLEARLY = 0.5
FEWEST_TARGETS = 16
AT_ONCE = 5
"""If the loss falls below that of guessing within this many steps, nothing is lost."""
LEARNED = 0.5
"""As a share of the loss of guessing."""
LARGE_INPUTS = 20.0
"""Root mean square; the initial weights of a layer are scaled for 1."""
CONFIDENT = (
    "An untrained model should have nearly equal scores. Large ones make it confident and mostly wrong, and "
    "the first steps only shrink them."
)
LARGE = (
    "Predicting 0 everywhere would cost less: the outputs of the untrained model are larger than the targets, "
    "and the first steps only shrink them."
)
FIX = (
    "Normalise the inputs to mean 0 and standard deviation 1, and start with a small last layer, such as "
    "nn.init.normal_(last.weight, std=0.01) with a bias of 0."
)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The loss of the probed batch."""
    if not _is_pretrained(setup.models):
        inputs = _large_inputs(setup.batches)
        for call in _high(setup.losses):
            yield _finding(call, *guess_of(call), inputs)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The losses before the first step of a run without loaded weights."""
    inputs = _large_inputs(record.of(BatchSeen))
    for call in judged(record):
        severity = Severity.ADVICE if _learned(record, call) else Severity.WARNING
        yield _finding(call, *guess_of(call), inputs, severity)


@dynamics.remembered
def judged(record: Record) -> list[LossCall]:
    """The first losses of a run that started with untrained weights and far above guessing."""
    if not losses.starts_fresh(record) or _is_pretrained(record.of(ModelSeen)):
        return []
    high = _high(call for call in record.of(LossCall) if call.step == 0)
    return [call for call in high if not _is_over_at_once(record, call)]


def _is_over_at_once(record: Record, first: LossCall) -> bool:
    """Did a squared error fall below that of guessing within the first steps? Then nothing is lost."""
    if first.loss != "mse_loss":
        return False
    guess = guess_of(first)[0]
    later = (call for call in record.of(LossCall) if call.place == first.place and 0 < call.step <= AT_ONCE)
    return any(call.value is not None and call.output_requires_grad and call.value < guess for call in later)


def _is_pretrained(models: Iterable[ModelSeen]) -> bool:
    """Do normalisation statistics differ from their initial values before training?"""
    return any(module.numbers.get("pretrained") for model in models for module in model.modules)


def _large_inputs(batches: Iterable[BatchSeen]) -> str:
    """The first input of the first layer, if its size explains that of the outputs."""
    batch = next((batch for batch in batches if batch.layer_input is not None), None)
    fact = batch.layer_input if batch is not None else None
    if batch is None or fact is None or fact.mean is None or math.hypot(fact.mean, fact.spread or 0.0) < LARGE_INPUTS:
        return ""
    layer = f"its first layer, {batch.layer} ({batch.layer_kind})," if batch.layer else batch.model
    return f": {layer} receives inputs from {fact.low:.4g} to {fact.high:.4g}{large_column(fact)}"


def large_column(fact: InputFact) -> str:
    """`, with column 3 about 1.1e+05 and the median column 1`, if one column stands out."""
    if fact.column is None:
        return ""
    place, largest, usual = fact.column
    return f", with column {place} about {largest:.2g} and the median column {usual:.2g}"


def _high(calls: Iterable[LossCall]) -> Iterator[LossCall]:
    for group in losses.trained(calls, LOSSES):
        read = losses.looked_at(group)
        # One line may serve many time steps, each with its own targets.
        if read and all(_is_high(call) for call in read):
            yield read[0]


def _is_high(call: LossCall) -> bool:
    """Is the loss clearly above guessing, where that is known?"""
    if call.value is None or call.reduction != "mean" or call.weighted or not _is_judged(call):
        return False
    guess, squared = guess_of(call)[0], call.loss == "mse_loss"
    times, more = (TIMES_SQUARED, 0.0) if squared else (TIMES, CLEARLY)
    return guess > 0 and call.value > max(times * guess, guess + more)


def _is_judged(call: LossCall) -> bool:
    """Does the prediction come directly from a layer, for enough targets?"""
    made_by = losses.given(call).made_by
    as_it_is = made_by.startswith(losses.LAYERS)
    turned = {"nll_loss": "LogSoftmax", "binary_cross_entropy": "Sigmoid"}.get(call.loss)
    right = made_by.startswith(turned) if turned else as_it_is
    return right and math.prod(losses.wanted(call).shape) >= FEWEST_TARGETS


def guess_of(call: LossCall) -> tuple[float, str]:
    """The loss of guessing, and its formula; 0 if unknown."""
    target = losses.wanted(call)
    if call.loss in CLASS_LOSSES:
        classes = losses.classes_of(call)
        if classes < 2 or "float" in target.dtype:
            return 0.0, ""
        return math.log(classes), f"log({classes})"
    if target.mean is None or target.spread is None or target.low is None or target.high is None:
        return 0.0, ""
    if call.loss in BINARY_LOSSES:
        inside = target.low >= 0 and target.high <= 1
        return (math.log(2), "log(2)") if inside else (0.0, "")
    return (target.mean**2 + target.spread**2, "the mean of the squared targets") if target.spread else (0.0, "")


def _learned(record: Record, first: LossCall) -> bool:
    """Did the loss of this line end far below that of guessing? Then a bad start cost some steps and no more."""
    calls = [call for call in record.of(LossCall) if call.place == first.place and call.output_requires_grad]
    values = [call.value for call in calls if call.value is not None]
    last = dynamics.median(values[-max(3, len(values) // 10) :])
    return last is not None and last < LEARNED * guess_of(first)[0]


def _finding(call: LossCall, guess: float, words: str, inputs: str, severity: Severity = Severity.WARNING) -> Finding:
    scores, value = losses.given(call), call.value or 0.0
    evidence = [Evidence("first loss", value), Evidence("loss of guessing", round(guess, 4))]
    if scores.spread is not None:
        evidence.append(Evidence("spread of the outputs", round(scores.spread, 4)))
    return rule.finding(
        f"{call.loss} starts at {value:.3g}, but guessing would cost {guess:.3g} ({words}){inputs}.",
        cause=LARGE if call.loss == "mse_loss" else CONFIDENT,
        fix=FIX,
        subject=Subject.at("call", f"first {call.loss}", call.place),
        place=call.place,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.LIKELY,
    )
