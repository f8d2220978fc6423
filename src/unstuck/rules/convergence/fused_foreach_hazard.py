"""O11: an optimizer step with foreach that needs more memory than there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Crash, GroupFact, OptimizerSeen, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import OUT_OF_MEMORY, crash_of

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="O11",
    name="fused-foreach-hazard",
    title="a step with foreach that needs more memory than is free",
    severity=Severity.WARNING,
    explains=("M21",),
    needs=(OptimizerSeen,),
)

CAUSE = (
    "foreach computes all parameters of a group at once and keeps the intermediate results of all of them, about as "
    "much as the parameters themselves: the step runs out of memory though forward and backward fit."
)
FIX = "Build the optimizer with foreach=False, which goes parameter by parameter, or with fused=True, which needs none."
LARGE = 2**30


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """What a step of each optimizer will need for a moment, against what is free."""
    for optimizer in setup.optimizers:
        needed = sum(group.temporaries or 0 for group in optimizer.groups)
        free = min((group.free for group in optimizer.groups if group.free is not None), default=None)
        if free is not None and needed > free:
            message = f"A step of {optimizer.kind} needs {_size(needed)} more for a moment, and {_size(free)} are free."
            yield _finding(optimizer, message, needed, [Evidence("free memory", _size(free))])


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A step that ran out of memory, of an optimizer that uses foreach. What a run survives needs no prediction."""
    crash = crash_of(record, *OUT_OF_MEMORY)
    for optimizer in record.setup().optimizers if crash is not None and crash.function == "step" else ():
        needed = sum(group.temporaries or 0 for group in optimizer.groups)
        if needed and crash is not None:
            message = f"{optimizer.kind}.step() ran out of memory; foreach takes {_size(needed)} of it for a moment."
            yield _finding(optimizer, message, needed, _around(crash))


def _around(crash: Crash) -> list[Evidence]:
    return [Evidence("optimizer steps before it", crash.step)]


def _finding(optimizer: OptimizerSeen, message: str, needed: int, evidence: list[Evidence]) -> Finding:
    return rule.finding(
        message,
        cause=CAUSE,
        fix=FIX,
        subject=Subject("optimizer", optimizer.optimizer),
        place=optimizer.place,
        evidence=[
            Evidence("extra memory in a step", _size(needed)),
            *evidence,
            Evidence("foreach", _foreach(optimizer.groups)),
        ],
        confidence=Confidence.LIKELY,
    )


def _foreach(groups: tuple[GroupFact, ...]) -> str:
    return "asked for" if any(group.foreach for group in groups) else "the default on a GPU"


def _size(count: int) -> str:
    return f"{count / LARGE:.1f} GiB" if count >= LARGE else f"{count / 2**20:.0f} MiB"
