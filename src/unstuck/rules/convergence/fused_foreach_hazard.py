"""O11: an optimizer step with foreach that needs more memory than is free."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import OptimizerSeen, Setup
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import crash_of

rule = Rule(
    code="O11",
    name="fused-foreach-hazard",
    title="an optimizer step with foreach that needs more memory than is free",
    severity=Severity.WARNING,
    explains=("M21",),
    needs=(OptimizerSeen,),
)

CAUSE = (
    "foreach updates all parameters of a group at once, so it needs extra memory about the size of the parameters: "
    "the step can run out of memory although forward and backward fit."
)
FIX = "Build the optimizer with foreach=False (one parameter at a time) or fused=True (no extra memory)."
LARGE = 2**30


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The temporary memory a step of each optimizer needs, against what is free."""
    for optimizer in setup.optimizers:
        needed = sum(group.temporaries or 0 for group in optimizer.groups)
        free = min((group.free for group in optimizer.groups if group.free is not None), default=None)
        if free is not None and needed > free:
            message = (
                f"A step of {optimizer.kind} needs {_size(needed)} of temporary memory, and {_size(free)} is free."
            )
            yield _finding(optimizer, message, needed, [Evidence("free memory", _size(free))])


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A step with foreach that ran out of memory; a run that did not needs no prediction."""
    crash = crash_of(record, TorchError.OUT_OF_MEMORY)
    for optimizer in record.setup().optimizers if crash is not None and crash.function == "step" else ():
        needed = sum(group.temporaries or 0 for group in optimizer.groups)
        if needed and crash is not None:
            message = f"{optimizer.kind}.step() ran out of memory; foreach needs {_size(needed)} of temporary memory."
            yield _finding(optimizer, message, needed, [Evidence("optimizer steps before it", crash.step)])


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
            Evidence(
                "foreach", "requested" if any(group.foreach for group in optimizer.groups) else "the default on a GPU"
            ),
        ],
        confidence=Confidence.LIKELY,
    )


def _size(count: int) -> str:
    return f"{count / LARGE:.1f} GiB" if count >= LARGE else f"{count / 2**20:.0f} MiB"
