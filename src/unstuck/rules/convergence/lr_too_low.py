"""O07: the learning rate is too low: gradients are healthy, updates tiny, and the loss crawls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import OptimizerSeen, OptimizerStep, StateLoaded, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.gradients import clip_always_on, vanishing_gradients
from unstuck.rules.shared import dynamics, range_test

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment
    from unstuck.interventions import Intervention
    from unstuck.record import Record

rule = Rule(
    code="O07",
    name="lr-too-low",
    title="the learning rate is too low: gradients are healthy, updates tiny, and the loss crawls",
    severity=Severity.WARNING,
    explains=("O22", "R08"),
    needs=(OptimizerStep, TensorGauges),
)

SMALL = 1e-4
"""Of an update, as a share of the weights: a tenth of the usual."""
HEALTHY = 1e-4
"""The norm of gradients that a higher rate could make something of."""
FEWEST = 30
RISING = 1.3
"""A rate this many times what it was in the middle of the run is being warmed up."""
CAUSE = (
    "The gradient points the way, but each update covers almost none of it; the optimizer needs a hundred steps for "
    "what one could do."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Even the weight that moves most, at its best time, moves far less than is usual, and the loss shows it."""
    if (found := judged(record)) is None:
        return
    optimizer, ratio, name = found
    trend, rate = dynamics.trend(record), dynamics.highest_rate(record, _groups(record))
    better = f"to about {dynamics.rounded(rate * dynamics.USUAL / ratio)}"
    yield rule.finding(
        f"At lr {rate:.3g} a step changes the weights by no more than {ratio:.1e} of their size (1e-3 is usual), and "
        f"the loss {_went(trend.word)} from {trend.first:.4g} to {trend.last:.4g} in {optimizer_steps(record)} steps.",
        cause=CAUSE,
        fix=f"Raise the learning rate {better}, in factors of 3 to 10, until the loss falls briskly; stop a factor of "
        "10 below where it becomes unstable.",
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=[
            Evidence("learning rate", rate),
            Evidence("largest change of a weight in a step, as a share of it", ratio, "", dynamics.USUAL),
            Evidence("the weight", name),
            Evidence("gradient norm", dynamics.median([norm for _, norm in dynamics.grad_norms(record)]) or 0.0),
            *([Evidence("more runs as long to reach 0", trend.runs_to_go)] if trend.runs_to_go else []),
        ],
        confidence=Confidence.LIKELY,
    )


def _groups(record: Record) -> set[int]:
    """The parameter groups of the weights that the sentence is about: others may have rates of their own."""
    return {series.group for series in dynamics.weights(record)}


def _went(word: str) -> str:
    return "crawled" if word == "crawling" else "hardly moved,"


def optimizer_steps(record: Record) -> int:
    """How many steps were taken, as far as the record tells."""
    seen = max((step.step + 1 for step in record.of(OptimizerStep)), default=0)
    return max(seen, record.ended.steps if record.ended else 0)


@dynamics.remembered
def judged(record: Record) -> tuple[OptimizerSeen, float, str] | None:
    """The optimizer whose rate is too low, the highest update ratio it reached, and where."""
    optimizer = dynamics.sole_optimizer(record)
    if optimizer is None or dynamics.trend(record).word not in dynamics.STUCK or optimizer_steps(record) < FEWEST:
        return None
    peaks = [(_peak(series), series.name) for series in dynamics.weights(record) if dynamics.known(series.update_ratio)]
    if not peaks or not 0 < max(peaks)[0] <= SMALL or has_other_reason(record):
        return None
    return (optimizer, *max(peaks))


def _peak(series: dynamics.TensorSeries) -> float:
    """What it moved by when it moved most, single steps aside: a rate that was right once is not too low."""
    return dynamics.quantile(dynamics.known(series.update_ratio), 0.9) or 0.0


def has_other_reason(record: Record) -> bool:
    """No rate at all, one being warmed up, gradients that vanish or are cut, or trained weights that need no more."""
    rates = [max(values) for _, values in dynamics.rates(record)]
    if not rates or max(rates) == 0 or rates[-1] > RISING * rates[len(rates) // 2]:
        return True
    loaded = any(event.matched for event in record.of(StateLoaded))
    flat = dynamics.trend(record).word == "flat"
    if (loaded and flat) or clip_always_on.judged(record):
        return True
    healthy = (dynamics.median([norm for _, norm in dynamics.grad_norms(record)]) or 0.0) > HEALTHY
    return not healthy or vanishing_gradients.judged(record) is not None


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The range test puts the rate a decade or more under the productive band, and trainings above it come further."""
    if experiment.name != "lr" or experiment.verdict != "too low":
        return
    band = range_test.measures_of(experiment)
    yield rule.finding(
        f"The learning rate {band.own:.3g} lies a factor of {band.lowest / band.own:,.0f} under the productive band, "
        f"{band.words}{range_test.comparison(experiment)}.",
        cause=CAUSE,
        fix=f"Set the learning rate to about {dynamics.rounded(band.suggested)}.",
        subject=Subject("optimizer", band.optimizer),
        evidence=range_test.evidence(experiment),
        confidence=Confidence.CERTAIN if experiment.measures.get("trainings") else Confidence.LIKELY,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The suggested rate; else a higher one, so that a step is about a thousandth of the weights; else a hundred times
    as high."""
    from unstuck.interventions import SetRate

    if factor := range_test.factor(finding):
        yield (SetRate(factor),)
    ratio = finding.number("largest change of a weight in a step, as a share of it")
    if ratio:
        yield (SetRate(float(f"{min(1e4, max(10.0, dynamics.USUAL / ratio)):.1g}")),)
    yield (SetRate(100.0),)
