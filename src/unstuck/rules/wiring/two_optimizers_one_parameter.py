"""M10: two optimizers that step the same parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unstuck.events import Backward, OptimizerSeen, OptimizerStep, ParameterFact, Setup, ZeroGrad
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects

rule = Rule(
    code="M10",
    name="two-optimizers-one-parameter",
    title="two optimizers step the same parameter with the same gradient",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "M14", "O22", "O25", "O26", "R08"),
    needs=(OptimizerSeen, OptimizerStep),
)

TWICE = (
    "Each applies the whole gradient with its own learning rate, momentum and decay, so these parameters move "
    "twice per step."
)
FIX = (
    "Give every parameter to one optimizer: remove the shared ones from the second, or use one optimizer with two "
    "groups."
)
FEWEST_TIMES = 3


class _Shared(NamedTuple):
    first: OptimizerSeen
    second: OptimizerSeen
    parameters: list[ParameterFact]


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Optimizers passed together that own the same tensors."""
    for shared in _shared(setup):
        yield _finding(shared, "both own", Severity.WARNING, [])


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Consecutive steps of two optimizers, with no backward and no zero_grad in between."""
    for shared in _shared(record.setup()):
        times, step = _same_gradient(record, shared)
        if times >= FEWEST_TIMES:
            evidence = [Evidence("pairs of steps on one gradient", times)]
            yield _finding(shared, "both stepped, with one gradient,", Severity.ERROR, evidence, step)


def _shared(setup: Setup) -> Iterator[_Shared]:
    for index, first in enumerate(setup.optimizers):
        keys = {fact.key for fact in first.parameters if fact.trainable}
        for second in setup.optimizers[index + 1 :]:
            common = [fact for fact in second.parameters if fact.key in keys and fact.trainable]
            if common:
                yield _Shared(first, second, common)


def _same_gradient(record: Record, shared: _Shared) -> tuple[int, OptimizerStep | None]:
    """How often one stepped after the other on the same gradients, and a step where it did."""
    names = {shared.first.optimizer, shared.second.optimizer}
    last: OptimizerStep | None = None
    times, where = 0, None
    for event in record.of(OptimizerStep, Backward, ZeroGrad):
        if not isinstance(event, OptimizerStep):
            last = None
        elif event.optimizer in names:
            follows = last is not None and last.optimizer != event.optimizer and event.step == last.step + 1
            if follows and _reaches(last, shared) and _reaches(event, shared):
                times, where = times + 1, where or event
            last = event
    return times, where


def _reaches(step: OptimizerStep | None, shared: _Shared) -> bool:
    """Did at least one of the shared parameters certainly have a gradient?"""
    return step is not None and (step.with_grad or 0) + len(shared.parameters) > (step.parameters or 0)


def _finding(
    shared: _Shared,
    what: str,
    severity: Severity,
    evidence: list[Evidence],
    step: OptimizerStep | None = None,
) -> Finding:
    names = objects.listed([fact.name for fact in shared.parameters])
    return rule.finding(
        f"{shared.first.optimizer} and {shared.second.optimizer} {what} "
        f"{objects.counted(len(shared.parameters), 'parameter')} ({names}).",
        cause=TWICE,
        fix=FIX,
        subject=Subject("parameter", names),
        place=shared.second.place,
        related=(shared.first.place, step.place if step else None),
        evidence=[Evidence("shared parameters", len(shared.parameters)), *evidence],
        severity=severity,
        confidence=Confidence.CERTAIN if step is not None else Confidence.LIKELY,
    )
