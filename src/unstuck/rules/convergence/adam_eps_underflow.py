"""O10: an eps of Adam that is zero, or becomes zero in the precision of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import GroupFact, OptimizerSeen, ParameterFact, Setup
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared import objects

if TYPE_CHECKING:
    from unstuck.interventions import Intervention
    from unstuck.record import Record

rule = Rule(
    code="O10",
    name="adam-eps-underflow",
    title="an eps of Adam that is 0, or becomes 0 in the precision of its state",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "M14", "O22", "O25", "O26", "R08"),
    needs=(OptimizerSeen,),
)

ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-134}
"""A number up to this becomes 0 in that precision: half of the smallest one above 0."""
CAUSE = (
    "The update is divided by sqrt(v) + eps. Where v is 0, which in half precision it is for every gradient under "
    "about 2e-4, eps is all that is left to divide by, and without it the weight becomes infinite or NaN."
)
CAUSE_ZERO = "The update is divided by sqrt(v) + eps: a weight that gets no gradient has v = 0, and 0 / 0 is NaN."
FIX_HALF = (
    "Keep weights and optimizer state in float32 and compute under torch.autocast; if they must be float16, eps=1e-4 "
    "or more survives."
)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Groups of adaptive optimizers with an eps that does not survive."""
    yield from _lost(setup)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same, with the precision of the state as the run showed it."""
    yield from _lost(record.setup())


def _lost(setup: Setup) -> Iterator[Finding]:
    for optimizer in setup.optimizers:
        if optimizer.kind not in ADAPTIVE:
            continue
        for group, held in objects.by_group(optimizer):
            if group.eps is None or not any(fact.trainable for fact in held):
                continue
            # The fused kernel computes in float32, whatever it keeps.
            dtype = "float32" if group.fused else _precision(optimizer, held)
            if group.eps <= SMALLEST.get(dtype, 0.0):
                yield _finding(optimizer, group, dtype)
                break


def _precision(optimizer: OptimizerSeen, held: tuple[ParameterFact, ...]) -> str:
    """The lowest one it computes in: that of the state it keeps, or before the first step, of the parameters that the
    state will be made like."""
    kept = optimizer.state_dtypes or tuple(fact.dtype for fact in held if fact.trainable)
    return next((dtype for dtype in SMALLEST if dtype in kept), "float32")


def _finding(optimizer: OptimizerSeen, group: GroupFact, dtype: str) -> Finding:
    zero = group.eps == 0
    what = "eps = 0" if zero else f"eps = {group.eps:g}, which is 0 in {dtype}"
    return rule.finding(
        f"{optimizer.kind} divides by sqrt(v) + eps with {what}, the precision of its state."
        if not zero
        else f"{optimizer.kind} divides by sqrt(v) + eps with {what}.",
        cause=CAUSE_ZERO if zero else CAUSE,
        fix="Leave eps at its default of 1e-8." if zero and dtype == "float32" else FIX_HALF,
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=[Evidence("eps", group.eps or 0.0), Evidence("precision of the state", dtype)],
        severity=Severity.WARNING if zero and dtype != "float16" else Severity.ERROR,
    )


@rule.remedied_by
def remedied(finding: Finding) -> Iterator[Sequence[Intervention]]:
    """The usual eps."""
    from unstuck.interventions import SetOption

    yield (SetOption("eps", 1e-8),)
