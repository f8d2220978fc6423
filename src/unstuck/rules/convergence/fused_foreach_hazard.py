"""O11: an optimizer step with foreach that needs more memory than there is."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import GroupFact, OptimizerSeen, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Witness
from unstuck.rule import Rule

rule = Rule(
    code="O11",
    name="fused-foreach-hazard",
    title="a step with foreach that needs more memory than is free",
    severity=Severity.WARNING,
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
            yield rule.finding(
                Witness.SETUP,
                f"A step of {optimizer.kind} needs {_size(needed)} more for a moment, and {_size(free)} are free.",
                cause=CAUSE,
                fix=FIX,
                subject=Subject("optimizer", optimizer.optimizer),
                place=optimizer.place,
                evidence=[
                    Evidence("extra memory in a step", _size(needed)),
                    Evidence("free memory", _size(free)),
                    Evidence("foreach", _foreach(optimizer.groups)),
                ],
                confidence=Confidence.LIKELY,
            )


def _foreach(groups: tuple[GroupFact, ...]) -> str:
    return "asked for" if any(group.foreach for group in groups) else "the default on a GPU"


def _size(count: int) -> str:
    return f"{count / LARGE:.1f} GiB" if count >= LARGE else f"{count / 2**20:.0f} MiB"
