"""O10: Adam's eps is 0, or underflows to 0 in the precision of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import GroupFact, OptimizerSeen, ParameterFact, Setup
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.rules.shared import objects

rule = Rule(
    code="O10",
    name="adam-eps-underflow",
    title="Adam's eps is 0, or underflows to 0 in the precision of its state",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "M14", "O22", "O25", "O26", "R08"),
    needs=(OptimizerSeen,),
)

ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-134}
"""Numbers up to this round to 0 in that precision: half of the smallest positive number."""
CAUSE = (
    "The update is divided by sqrt(v) + eps. In half precision v underflows to 0 for every gradient below about 2e-4, "
    "so without eps the update divides by 0 and the weight becomes infinite or NaN."
)
CAUSE_ZERO = "The update is divided by sqrt(v) + eps: a weight that gets no gradient has v = 0, and 0 / 0 is NaN."
FIX_HALF = (
    "Keep weights and optimizer state in float32 and compute under torch.autocast. If they must be float16, use "
    "eps=1e-4 or more."
)


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Parameter groups of adaptive optimizers whose eps underflows."""
    yield from _lost(setup)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same, with the precision of the state that the run recorded."""
    yield from _lost(record.setup())


def _lost(setup: Setup) -> Iterator[Finding]:
    for optimizer in setup.optimizers:
        if optimizer.kind not in ADAPTIVE:
            continue
        for group, parameters in objects.by_group(optimizer):
            if group.eps is None or not any(fact.trainable for fact in parameters):
                continue
            # The fused kernel computes in float32, whatever precision it stores.
            dtype = "float32" if group.fused else _precision(optimizer, parameters)
            if group.eps <= SMALLEST.get(dtype, 0.0):
                yield _finding(optimizer, group, dtype)
                break


def _precision(optimizer: OptimizerSeen, parameters: tuple[ParameterFact, ...]) -> str:
    """The lowest precision of its state; before the first step that of the parameters, which the state will copy."""
    dtypes = optimizer.state_dtypes or tuple(fact.dtype for fact in parameters if fact.trainable)
    return next((dtype for dtype in SMALLEST if dtype in dtypes), "float32")


def _finding(optimizer: OptimizerSeen, group: GroupFact, dtype: str) -> Finding:
    zero = group.eps == 0
    return rule.finding(
        f"{optimizer.kind} has eps = 0."
        if zero
        else f"eps = {group.eps:g} underflows to 0 in {dtype}, the precision of {optimizer.kind}'s state.",
        cause=CAUSE_ZERO if zero else CAUSE,
        fix="Use the default eps of 1e-8." if zero and dtype == "float32" else FIX_HALF,
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=[Evidence("eps", group.eps or 0.0), Evidence("precision of the state", dtype)],
        severity=Severity.WARNING if zero and dtype != "float16" else Severity.ERROR,
    )


rule.remedied_by(with_change("SetOption", "eps", 1e-8))
