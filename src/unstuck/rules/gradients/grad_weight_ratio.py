"""G18: gradients out of proportion to the weights, or zero in one layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import OptimizerStep, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics
from unstuck.rules.wiring import lr_too_high

rule = Rule(
    code="G18",
    name="grad-weight-ratio",
    title="gradients too large for their weights while the loss diverges, or zero in one layer while it is stuck",
    severity=Severity.WARNING,
    explains=("O22",),
    needs=(OptimizerStep, TensorGauges),
    needs_one_optimizer=True,
)

LARGE = 0.1
FEWEST_STEPS = 5
FELT = 0.01
"""Multiplied by the learning rate, a gradient must change a weight by this share to matter."""
GONE = 1e-6
"""Share of what its gradient was at first."""
TOO_LARGE = (
    "Plain SGD moves a weight in proportion to its gradient. A gradient as large as the weight overwrites it, "
    "unless the learning rate is very small."
)
LOST = "A layer without a gradient does not learn, and the layers before it learn only through other paths."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Vanished gradients in a stuck run; oversized gradients in one whose loss jumped or diverged."""
    if dynamics.sole_optimizer(record) is None:
        return
    measured = [series for series in dynamics.weights(record) if len(dynamics.known(series.grad_norm)) >= FEWEST_STEPS]
    if dynamics.problem(record):
        yield from _gone(record, measured)
    yield from _large(record, measured)


def _gone(record: Record, measured: Sequence[dynamics.TensorSeries]) -> Iterator[Finding]:
    """Layers that had a gradient at first and then exactly or nearly 0, while others still have one."""
    lost = [series for series in measured if _is_lost(series)]
    if not lost or len(lost) == len(measured):
        return
    first = lost[0]
    norms = dynamics.known(first.grad_norm)
    names = [series.name for series in lost]
    after = next(step for step, norm in _tail_of_nothing(first))
    yield rule.finding(
        f"From step {after + 1} on, {_counted(names)} no gradient, and the loss {dynamics.problem(record)}.",
        cause=LOST,
        fix=f"Look between {first.name} and the loss for a ReLU, clamp or saturated gate that is 0 for every "
        "input, or a branch that is multiplied by 0.",
        subject=Subject("parameter", first.name),
        place=dynamics.model_place(record),
        evidence=[
            Evidence("layers without a gradient", names),
            Evidence(f"gradient norm of {first.name} at first", norms[0]),
            Evidence("at the end", norms[-1]),
            Evidence("weights with a gradient", len(measured) - len(lost)),
        ],
        confidence=Confidence.LIKELY,
    )


def _counted(names: Sequence[str]) -> str:
    return f"{names[0]} has" if len(names) == 1 else f"{len(names)} weights, {names[0]} first, have"


def _tail_of_nothing(series: dynamics.TensorSeries) -> list[tuple[int, float]]:
    """The last steps of the run in which its gradient was a vanishing fraction of what it had been."""
    pairs = [(at, norm) for at, norm in zip(series.steps, series.grad_norm, strict=True) if norm is not None]
    limit = GONE * max(norm for _, norm in pairs[:FEWEST_STEPS])
    position = len(pairs)
    while position and pairs[position - 1][1] <= limit:
        position -= 1
    return pairs[position:]


def _is_lost(series: dynamics.TensorSeries) -> bool:
    norms = dynamics.known(series.grad_norm)
    gone = len(_tail_of_nothing(series))
    return max(norms[:FEWEST_STEPS]) > 0 and len(norms) > gone >= max(FEWEST_STEPS, len(norms) // 4)


def _large(record: Record, measured: Sequence[dynamics.TensorSeries]) -> Iterator[Finding]:
    optimizer, failure = dynamics.sole_optimizer(record), dynamics.failure(record)
    if optimizer is None or failure is None or dynamics.is_adaptive(optimizer) or lr_too_high.judged(record):
        return
    rate = dynamics.highest_rate(record)
    ratios = {series.name: ratio for series in measured if (ratio := _ratio(series)) is not None and ratio > LARGE}
    if not ratios or max(ratios.values()) * rate < FELT:
        return
    name = max(ratios, key=lambda one: ratios[one])
    yield rule.finding(
        f"The gradient of {name} is {ratios[name]:.2g} times the weight, and the loss {failure.word}.",
        cause=TOO_LARGE,
        fix=f"Lower the learning rate ({rate:.3g}), clip the gradients, or fix what makes them large: inputs that "
        "are not normalised, or a loss that is summed instead of averaged.",
        subject=Subject("parameter", name),
        place=dynamics.step_place(record),
        evidence=[
            Evidence("gradient norm as a share of the weight's", ratios[name], "", LARGE),
            Evidence("weights above that", list(ratios)),
        ],
        confidence=Confidence.LIKELY,
    )


def _ratio(series: dynamics.TensorSeries) -> float | None:
    """The typical norm of a gradient as a share of its weight's norm."""
    pairs = zip(series.grad_norm, series.weight_norm, strict=True)
    return dynamics.median([gradient / weight for gradient, weight in pairs if gradient is not None and weight])
