"""O22: updates far too large or too small throughout the run, or one tensor far ahead of the others."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import OptimizerSeen, OptimizerStep, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Rule
from unstuck.rules.convergence import lr_too_low
from unstuck.rules.gradients import vanishing_gradients
from unstuck.rules.shared import dynamics
from unstuck.rules.wiring import lr_too_high

rule = Rule(
    code="O22",
    name="update-ratio",
    title="updates far from a thousandth of the weights, or one tensor updated 100 times as fast as the others",
    severity=Severity.WARNING,
    explains=("R08",),
    needs=(OptimizerStep, TensorGauges),
    needs_one_optimizer=True,
)

AHEAD = 100.0
"""Times the typical ratio of the other tensors."""
FAST = 0.01
"""A tensor ahead of the others must itself move by this share per step."""
LARGE, SMALL = 0.1, 1e-5
FEWEST_PEERS = 3
FEWEST_STEPS = 8
OVERWRITTEN = "A weight that is overwritten within a few steps forgets what it learned, and other layers cannot adapt."
UNMOVED = "Weights that change so little stay at their initial values."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The tensor that is far ahead, or the whole model; nothing if another rule blames the learning rate itself."""
    optimizer, trend = dynamics.sole_optimizer(record), dynamics.trend(record)
    if optimizer is None or not dynamics.problem(record):
        return
    if lr_too_high.judged(record) or lr_too_low.judged(record) or vanishing_gradients.judged(record):
        return
    typical = {
        series: ratio
        for series in dynamics.weights(record)
        if len(dynamics.known(series.update_ratio)) >= FEWEST_STEPS
        and (ratio := dynamics.median(dynamics.known(series.update_ratio))) is not None
    }
    yield from _ahead(record, optimizer, typical) if len(typical) > FEWEST_PEERS else ()
    middle = dynamics.median(list(typical.values())) or 0.0
    decay = max((group.weight_decay for group in optimizer.groups), default=0.0) * dynamics.highest_rate(record)
    # If weight decay is most of the update, it is not the gradient that moves the weights.
    guesses = dynamics.does_not_beat_a_guess(record)
    overwritten = (
        middle > LARGE
        and (guesses or trend.word in (Direction.FLAT, Direction.RISING, Direction.SPIKING))
        and decay < middle / 2
    )
    flat = guesses or trend.word == Direction.FLAT
    unmoved = 0 < middle < SMALL and flat and not lr_too_low.has_other_reason(record)
    if overwritten or unmoved:
        yield _whole(record, optimizer, middle, len(typical))


def _ahead(record: Record, optimizer: OptimizerSeen, typical: dict[dynamics.TensorSeries, float]) -> Iterator[Finding]:
    fastest = max(typical, key=lambda series: typical[series])
    peers = dynamics.median([ratio for series, ratio in typical.items() if series is not fastest]) or 0.0
    ratio = typical[fastest]
    if ratio < FAST or not 0 < AHEAD * peers < ratio:
        return
    rates = _rates_of(record, fastest.group)
    yield rule.finding(
        f"{fastest.name} changes by {ratio:.2g} of its size per step, {ratio / peers:,.0f} times as much as the other "
        f"weights, and the loss {dynamics.problem(record)}.",
        cause=OVERWRITTEN,
        fix=_fix_for_one(fastest.name, rates),
        subject=Subject("parameter", fastest.name),
        place=optimizer.place,
        evidence=[
            Evidence(f"update of {fastest.name} per step, as a share of it", ratio, "", dynamics.USUAL),
            Evidence("update of the other weights", peers),
            *(
                [Evidence("learning rate of its group", rates[0]), Evidence("learning rate of the others", rates[1])]
                if rates
                else []
            ),
        ],
        confidence=Confidence.LIKELY,
    )


def _fix_for_one(name: str, rates: tuple[float, float] | None) -> str:
    if rates and rates[0] > 10 * rates[1]:
        return f"Lower the learning rate of its group from {rates[0]:.3g} to about that of the others, {rates[1]:.3g}."
    return (
        f"Check how {name} differs: if its weights are much smaller than the others, initialize it like them; if its "
        "inputs are much larger, normalize them; or give it a group with a lower learning rate."
    )


def _rates_of(record: Record, group: int) -> tuple[float, float] | None:
    """The learning rate of this group and the highest of the other groups, if there are any."""
    for _, rates in dynamics.rates(record):
        others = [rate for index, rate in enumerate(rates) if index != group]
        if others and group < len(rates):
            return rates[group], max(others)
    return None


def _whole(record: Record, optimizer: OptimizerSeen, ratio: float, tensors: int) -> Finding:
    large = ratio > LARGE
    rate = dynamics.highest_rate(record)
    way = "Lower" if large else "Raise"
    better = dynamics.rounded(rate * dynamics.USUAL / ratio)
    return rule.finding(
        f"Throughout the run the weights change by {ratio:.1e} of their size per step (1e-3 is usual), and "
        f"the loss {dynamics.problem(record)}.",
        cause=OVERWRITTEN if large else UNMOVED,
        fix=f"{way} the learning rate from {rate:.3g} to about {better}, and check the ratio again.",
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=[
            Evidence("update of the weights per step, as a share of them", ratio, "", dynamics.USUAL),
            Evidence("weight tensors", tensors),
            Evidence("learning rate", rate),
        ],
        confidence=Confidence.LIKELY,
    )
