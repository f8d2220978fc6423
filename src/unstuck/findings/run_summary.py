"""What a record shows about its run as a whole: how it ended, how many steps it took, what no gradient reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unstuck.events import (
    Backward,
    BatchShown,
    HandStep,
    ModelSeen,
    OptimizerStep,
    RunStatus,
    TensorGauges,
    TensorsNamed,
)
from unstuck.findings.curve import curves_of
from unstuck.findings.preview import previews_of
from unstuck.findings.result import RunSummary
from unstuck.findings.verdict import Verdict

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST = 3
"""Measured steps without a gradient before a parameter is reported."""

PLAIN = 0.999
"""The cosine between an update by hand and the gradient, from which on one is a multiple of the other."""


def run_summary(record: Record, path: str, verdict: Verdict) -> RunSummary:
    """The run whose record is at `path`."""
    started, ended = record.started, record.ended
    return RunSummary(
        script=started.script,
        arguments=started.arguments,
        status=ended.status if ended else RunStatus.UNFINISHED,
        reason=ended.reason if ended else "",
        exit_code=ended.exit_code if ended else None,
        steps=ended.steps if ended else steps_on_record(record),
        trained=bool(record.losses) or any(record.of(Backward, OptimizerStep)) or bool(ended and ended.steps),
        by_hand=any(record.of(HandStep)) and not any(record.of(OptimizerStep)),
        seconds=ended.seconds if ended else None,
        crash=record.crash,
        record=path,
        received=(
            *(good.lead.message for good in verdict.good_news),
            *parameters_without_gradient(record),
            *_rate_by_hand(record),
        ),
        has_pictures=any(record.of(BatchShown)),
        previews=previews_of(record),
        curves={name: curve for name, curve in curves_of(record).items() if curve.losses},
    )


def steps_on_record(record: Record) -> int:
    """The optimizer steps in a record without an end: each event says how many were taken before it."""
    return max((event.step + isinstance(event, OptimizerStep | HandStep) for event in record.events), default=0)


def _rate_by_hand(record: Record) -> tuple[str, ...]:
    """At which rate weights are updated without an optimizer."""
    steps = [(event.along, event.rate) for event in record.of(HandStep) if event.along is not None and event.rate]
    if len(steps) < FEWEST or any(record.of(OptimizerStep)):
        return ()
    rates = sorted(rate for _, rate in steps)
    if all(abs(along) > PLAIN for along, _ in steps):
        return (
            f"No optimizer of torch is used: weights are updated by hand, at a rate of {rates[len(rates) // 2]:.3g}.",
        )
    return ("No optimizer of torch is used: weights are updated by hand, by a rule other than the plain gradient.",)


def parameters_without_gradient(record: Record) -> tuple[str, ...]:
    """A sentence for each optimizer with parameters that never had a gradient while others did."""
    frozen = {fact.name for model in record.of(ModelSeen) for fact in model.parameters if not fact.trainable}
    names_by_optimizer = {event.optimizer: event.names for event in record.of(TensorsNamed)}
    sentences = []
    for optimizer, names in names_by_optimizer.items():
        gauges = [event.grad_norm for event in record.of(TensorGauges) if event.optimizer == optimizer]
        columns = list(zip(*gauges, strict=False)) if len(gauges) >= FEWEST else []
        without = [name for name, norms in zip(names, columns, strict=False) if all(norm is None for norm in norms)]
        missing = [name for name in without if name not in frozen]
        if missing and len(missing) < len(names):
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            count = f"{len(missing)} of the {len(names)} parameters of {optimizer}"
            sentences.append(f"{count} never had a gradient: {some}.")
    return tuple(sentences)
