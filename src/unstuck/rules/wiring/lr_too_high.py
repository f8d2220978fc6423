"""M14: the learning rate is too high: updates overwrite the weights, and the loss jumps, rises or swings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import LossCall, OptimizerSeen, OptimizerStep, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import dynamics, losses, range_test

rule = Rule(
    code="M14",
    name="lr-too-high",
    title="the learning rate is too high: the loss rises, jumps or swings right after large updates",
    severity=Severity.ERROR,
    explains=("G05", "G08", "G10", "G18", "O22", "O25", "O26", "R08"),
    needs=(OptimizerStep, TensorGauges),
    needs_one_optimizer=True,
)

LARGE = 0.05
"""An update above this share of the weights is too large if the loss shows it."""
EXPLODED = 1000.0
"""Gradient norm times weight norm, as a multiple of the loss: by how many times its own value the loss would change if
the weights changed by their own size. It does not depend on the scale of the loss or of the data. A network that starts
well is between 1 and 200; gradients that explode through depth or time are far above."""
SANE_RATE = 0.1
"""At or below this learning rate, plain SGD on exploding gradients is not to blame."""
CAUSE = (
    "An update of that size overshoots: it throws the weights across the valley, to where the gradient is even larger."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Updates were far too large before the loss jumped or rose, because of the rate and not the gradients."""
    if (found := judged(record)) is None:
        return
    optimizer, failure, ratio = found
    rate = dynamics.highest_rate(record)
    better = dynamics.rounded(rate * 3 * dynamics.USUAL / ratio)
    broken = dynamics.trend(record).word == Direction.NON_FINITE
    diverged = broken or (failure.after is not None and failure.after > 3 * failure.before)
    yield rule.finding(
        f"The loss {failure.word}: at lr {rate:.3g} every step changes the weights by {_share(ratio)} their size.",
        cause=CAUSE,
        fix=f"Lower the learning rate to about {better}, and warm it up over the first few hundred steps.",
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        related=(dynamics.step_place(record),),
        evidence=_evidence(record, failure, ratio, rate),
        severity=Severity.ERROR if diverged else Severity.WARNING,
        confidence=Confidence.CERTAIN if diverged or ratio > 0.5 else Confidence.LIKELY,
    )


@dynamics.remembered
def judged(record: Record) -> tuple[OptimizerSeen, dynamics.Failure, float] | None:
    """The optimizer whose rate is too high, what it did to the loss, and how large its updates were."""
    optimizer, failure, ratio = dynamics.sole_optimizer(record), dynamics.failure(record), dynamics.pace_before(record)
    if optimizer is None or failure is None or ratio is None or ratio < LARGE:
        return None
    exploded = _steepness(record) > EXPLODED and dynamics.highest_rate(record) <= SANE_RATE
    if (exploded and not dynamics.is_adaptive(optimizer)) or _was_learning(record, failure.step):
        return None
    return optimizer, failure, ratio


def _steepness(record: Record) -> float:
    """Of the first steps: how steep the loss is, for its own size and that of the weights."""
    gradient = dynamics.median([norm for _, norm in dynamics.grad_norms(record) if math.isfinite(norm)][:3])
    loss = dynamics.median([abs(value) for _, value in dynamics.losses(record) if math.isfinite(value)][:3])
    if loss and (guess := _guess(record)):
        loss = min(loss, guess)  # weights that answer a thousand times too much are steep, whatever that costs
    starts = (next(iter(dynamics.known(series.weight_norm)), 0.0) for series in dynamics.tensors(record))
    weight = math.hypot(*starts)
    return gradient * weight / loss if gradient and loss else 0.0


def _guess(record: Record) -> float | None:
    """What a constant answer would cost; a run that broke within its first steps has only its targets to tell."""
    found = dynamics.outcome(record)
    if found is not None and found.guess is not None:
        return found.guess
    guesses = [losses.constant_answer(calls) for calls in losses.trained(record.of(LossCall), ("mse_loss",))]
    return guesses[0] if len(guesses) == 1 else None


def _was_learning(record: Record, harmed: int) -> bool:
    """Had the loss been falling at the same or a higher learning rate? Then the cause is something else."""
    before = [value for step, value in dynamics.losses(record) if step < harmed]
    rates = [max(values) for step, values in dynamics.rates(record) if step <= harmed]
    if len(before) < dynamics.FEW or not rates:
        return False
    steady = rates[-1] <= 1.5 * rates[len(rates) // 2]
    return steady and (dynamics.median(before[-3:]) or 0.0) < 0.7 * before[0]


def _evidence(record: Record, failure: dynamics.Failure, ratio: float, rate: float) -> list[Evidence]:
    norms = [norm for step, norm in dynamics.grad_norms(record) if step < failure.step]
    evidence = [
        Evidence("learning rate", rate),
        Evidence("change of the weights per step, as a share", ratio, "", dynamics.USUAL),
        Evidence("loss before", failure.before),
        Evidence("step at which it appears", failure.step + 1),
    ]
    if norms:
        evidence.append(Evidence("gradient norm before it", dynamics.median(norms) or 0.0))
    return evidence


def _share(ratio: float) -> str:
    return f"{ratio:.0%} of" if ratio < 10 else f"{ratio:,.0f} times"


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The range test suggested a lower learning rate, and on three seeds the run did better with it."""
    if experiment.name != "lr" or experiment.verdict != ExperimentVerdict.TOO_HIGH:
        return
    band, broken = range_test.measures_of(experiment), bool(experiment.measures.get("own_broken"))
    certain = broken or bool(experiment.measures.get("confirmed"))
    severity = Severity.ERROR if broken else Severity.WARNING
    yield rule.finding(
        f"The learning rate {band.own:.3g} is {band.own / band.suggested:,.0f} times the one that trains best; the "
        f"productive band is {band.words}{range_test.comparison(experiment)}.",
        cause=CAUSE,
        fix=f"Set the learning rate to about {dynamics.rounded(band.suggested)}.",
        subject=Subject("optimizer", band.optimizer),
        evidence=range_test.evidence(experiment),
        severity=severity if broken or range_test.holds_back(experiment) else Severity.ADVICE,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """The suggested learning rate, else a tenth or a hundredth of the current one."""
    from unstuck.interventions import SetRate

    if factor := range_test.factor(finding):
        yield (SetRate(factor),)
    yield (SetRate(0.1),)
    yield (SetRate(0.01),)
