"""M12: half-precision weights whose updates are too small to change them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unstuck.events import Gauges, OptimizerSeen, Setup, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.outcome import Achieved
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics, objects

rule = Rule(
    code="M12",
    name="lost-updates",
    title="updates of bf16 or fp16 weights that round to nothing",
    severity=Severity.ERROR,
    explains=("O07", "O22", "R08"),
    needs=(TensorGauges, OptimizerSeen),
)

HALVES = ("bfloat16", "float16")
SPACING = {"bfloat16": "2^-8", "float16": "2^-11"}
STEP_IS_RATE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion")
"""Optimizers whose update is about as large as the learning rate, whatever the gradient."""
MUCH = 0.5
NEARLY_ALL = 0.95
FEWEST_STEPS = 5
CAUSE = (
    "{dtype} has a relative precision of {spacing}. A smaller update than half of that rounds back to the old "
    "value, and is lost for good."
)
FIX = (
    "Keep the weights in float32 and compute under torch.autocast(dtype=torch.bfloat16); or use an optimizer with "
    "stochastic rounding or a float32 copy of the weights."
)


class _Lost(NamedTuple):
    dtype: str
    share: float
    tensors: int
    worst: str


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Elements with a gradient that steps did not change, in a run that does not learn well."""
    for optimizer in record.setup().optimizers:
        lost = _lost(record, optimizer)
        if lost is None or lost.share < MUCH:
            continue
        found = dynamics.outcome(record)
        if found is not None and found.word is Achieved.LEARNS:
            continue
        yield _finding(
            optimizer,
            lost.dtype,
            f"{lost.share:.0%} of the {lost.dtype} weights with a gradient did not change in a step of "
            f"{optimizer.optimizer}: their updates round to nothing.",
            [
                Evidence("weights that a step does not change", f"{lost.share:.0%}", "", f"{MUCH:.0%}"),
                Evidence("tensors examined", lost.tensors),
                Evidence("most affected", lost.worst),
            ],
            Severity.ERROR if lost.share >= NEARLY_ALL else Severity.WARNING,
        )


def _lost(record: Record, optimizer: OptimizerSeen) -> _Lost | None:
    """The share over all half-precision tensors, in the steps with the highest learning rates."""
    dtypes = {fact.name: fact.dtype for fact in optimizer.parameters if fact.dtype in HALVES}
    series = [one for one in dynamics.tensors(record) if one.optimizer == optimizer.optimizer and one.name in dtypes]
    steps = _steps_at_full_rate(record, optimizer.optimizer)
    shares: list[tuple[float, int, str]] = []
    for one in series:
        counted = [v for step, v in zip(one.steps, one.unmoved, strict=True) if v is not None and step in steps]
        middle = dynamics.median(counted) if len(counted) >= FEWEST_STEPS else None
        if middle is not None:
            shares.append((middle, one.size, one.name))
    total = sum(size for _, size, _ in shares)
    if not total:
        return None
    share = sum(middle * size for middle, size, _ in shares) / total
    worst = max(shares)[2]
    return _Lost(dtypes[worst], share, len(shares), worst)


def _steps_at_full_rate(record: Record, optimizer: str) -> set[int]:
    """Excludes warm-up and the end of a schedule, where updates are small by design."""
    own = [gauge for gauge in record.of(Gauges) if gauge.rates and gauge.optimizer in ("", optimizer)]
    peak = max((max(gauge.rates) for gauge in own), default=0.0)
    # The gauges of the loss and of the tensors of one step may be numbered one apart.
    full = {gauge.step for gauge in own if max(gauge.rates) >= peak / 2}
    return full | {step + 1 for step in full}


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Weights that even a step as large as the learning rate would not change."""
    for optimizer in setup.optimizers if setup else ():
        for group, held in objects.by_group(optimizer):
            dtype = next((fact.dtype for fact in held if fact.dtype in HALVES), "")
            share = group.too_small or 0.0
            if optimizer.kind not in STEP_IS_RATE or not dtype or share < MUCH:
                continue
            yield _finding(
                optimizer,
                dtype,
                f"A step of {optimizer.kind} is about as large as the learning rate, {group.rate:g}, which is "
                f"too small to change {share:.0%} of the {dtype} weights.",
                [Evidence("weights that such a step does not change", f"{share:.0%}", "", f"{MUCH:.0%}")],
                Severity.WARNING,
            )
            break


def _finding(
    optimizer: OptimizerSeen,
    dtype: str,
    message: str,
    evidence: list[Evidence],
    severity: Severity,
) -> Finding:
    return rule.finding(
        message,
        cause=CAUSE.format(dtype=dtype, spacing=SPACING[dtype]),
        fix=FIX,
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=evidence,
        severity=severity,
        confidence=Confidence.CERTAIN if severity is Severity.ERROR else Confidence.LIKELY,
    )
