"""O07: the learning rate is too low: healthy gradients, tiny updates, and a loss that crawls."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import OptimizerSeen, OptimizerStep, StateLoaded, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Remedies, Rule
from unstuck.rules.gradients import clip_always_on, vanishing_gradients
from unstuck.rules.shared import dynamics, range_test

rule = Rule(
    code="O07",
    name="lr-too-low",
    title="the learning rate is too low: healthy gradients, tiny updates, and a loss that crawls",
    severity=Severity.WARNING,
    explains=("O22", "R08"),
    needs=(OptimizerStep, TensorGauges),
    needs_one_optimizer=True,
)

SMALL = 1e-4
"""The largest update, as a share of the weight, that is too small: a tenth of the usual."""
HEALTHY = 1e-4
"""Gradients above this norm are large enough to learn from."""
FEWEST = 30
RISING = 1.3
"""A final learning rate this many times that of mid-run is a warm-up."""
CHANGE = "largest update of a weight in a step, as a share of it"
CAUSE = "The gradients are healthy, but each update is so small that progress takes a hundred times as many steps."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Even the fastest weight, at its fastest, moves far less than usual, and the loss stalls or crawls."""
    if (found := judged(record)) is None:
        return
    optimizer, ratio, name = found
    trend = dynamics.trend(record)
    # Only the groups of these weights count: others may have learning rates of their own.
    rate = dynamics.highest_rate(record, {series.group for series in dynamics.weights(record)})
    if trend.falls:
        went = "crawled" if trend.word == Direction.CRAWLING else "came only"
    else:
        went = "barely moved,"
    yield rule.finding(
        f"At lr {rate:.3g} a step changes the weights by at most {ratio:.1e} of their size (1e-3 is usual), and "
        f"the loss {went} from {trend.first:.4g} to {trend.last:.4g} in {optimizer_steps(record)} steps.",
        cause=CAUSE,
        fix=f"Raise the learning rate to about {dynamics.rounded(rate * dynamics.USUAL / ratio)}, in factors of 3 to "
        "10, until the loss falls quickly; stop a factor of 10 below where it becomes unstable.",
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=[
            Evidence("learning rate", rate),
            Evidence(CHANGE, ratio, "", dynamics.USUAL),
            Evidence("that weight", name),
            Evidence("gradient norm", dynamics.median([norm for _, norm in dynamics.grad_norms(record)]) or 0.0),
            *([Evidence("runs of this length needed to reach 0", trend.runs_to_go)] if trend.runs_to_go else []),
        ],
        confidence=Confidence.LIKELY,
    )


def optimizer_steps(record: Record) -> int:
    """How many steps were taken, as far as the record shows."""
    seen = max((step.step + 1 for step in record.of(OptimizerStep)), default=0)
    return max(seen, record.ended.steps if record.ended else 0)


@dynamics.remembered
def judged(record: Record) -> tuple[OptimizerSeen, float, str] | None:
    """The optimizer whose learning rate is too low, its highest update ratio, and the weight that reached it."""
    optimizer = dynamics.sole_optimizer(record)
    if optimizer is None or not dynamics.is_stuck(record) or optimizer_steps(record) < FEWEST:
        return None
    peaks = [(_peak(series), series.name) for series in dynamics.weights(record) if dynamics.known(series.update_ratio)]
    if not peaks or not 0 < max(peaks)[0] <= SMALL or has_other_reason(record):
        return None
    return (optimizer, *max(peaks))


def _peak(series: dynamics.TensorSeries) -> float:
    """The update ratio at its highest, ignoring outliers: a learning rate that was once right is not too low."""
    return dynamics.quantile(dynamics.known(series.update_ratio), 0.9) or 0.0


def has_other_reason(record: Record) -> bool:
    """A learning rate of 0 or in warm-up, gradients that vanish or are clipped, or weights that are already trained."""
    rates = [max(values) for _, values in dynamics.rates(record)]
    if not rates or max(rates) == 0 or rates[-1] > RISING * rates[len(rates) // 2]:
        return True
    loaded = record.continues or any(event.matched for event in record.of(StateLoaded))
    flat = dynamics.trend(record).word == Direction.FLAT
    if (loaded and flat) or clip_always_on.judged(record):
        return True
    healthy = (dynamics.median([norm for _, norm in dynamics.grad_norms(record)]) or 0.0) > HEALTHY
    return not healthy or vanishing_gradients.judged(record) is not None


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The range test suggested a higher learning rate, and on three seeds the run did better with it."""
    if experiment.name != "lr" or experiment.verdict != ExperimentVerdict.TOO_LOW:
        return
    band = range_test.measures_of(experiment)
    yield rule.finding(
        f"The learning rate {band.own:.3g} is a factor of {band.suggested / band.own:,.0f} below the one that trains "
        f"best; the productive band is {band.words}{range_test.comparison(experiment)}.",
        cause=CAUSE,
        fix=f"Set the learning rate to about {dynamics.rounded(band.suggested)}.",
        subject=Subject("optimizer", band.optimizer),
        evidence=range_test.evidence(experiment),
        severity=Severity.WARNING if range_test.holds_back(experiment) else Severity.ADVICE,
        confidence=Confidence.CERTAIN if experiment.measures.get("confirmed") else Confidence.LIKELY,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """The suggested learning rate, else one that brings updates to a thousandth of the weights, else 100 times it."""
    from unstuck.interventions import SetRate

    if factor := range_test.factor(finding):
        yield (SetRate(factor),)
    if ratio := finding.number(CHANGE):
        yield (SetRate(float(f"{min(1e4, max(10.0, dynamics.USUAL / ratio)):.1g}")),)
    yield (SetRate(100.0),)
