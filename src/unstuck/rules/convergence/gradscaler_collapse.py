"""O24: the scale of GradScaler keeps falling, and steps are skipped long after the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unstuck.events import OptimizerStep, ScalerUpdate, StepSkipped
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule

rule = Rule(
    code="O24",
    name="gradscaler-collapse",
    title="GradScaler's scale collapses and steps are skipped",
    severity=Severity.ERROR,
    explains=("O07", "O22", "R08"),
    needs=(ScalerUpdate,),
    logged=(ScalerUpdate,),
)

FEWEST = 20
"""From 65,536 to 1 takes 16 halvings, so a scaler has found its scale after this many attempts."""
ALL = 0.9
MANY = 0.1
"""A scaler tries a larger scale every 2,000 steps, so a healthy run skips one step in 2,000."""
COLLAPSED = 1.0
STUCK = (
    "GradScaler skips a step with infinite or NaN gradients and halves its scale. Lowering the scale no longer helps, "
    "so the gradients are broken even without scaling, and no weight changes."
)
LOSING = (
    "GradScaler skips a step with infinite or NaN gradients and halves its scale. At the start that is how it finds "
    "its scale; this late it means that values keep overflowing float16."
)


class _Tally(NamedTuple):
    attempts: int
    skipped: int
    late: int
    """Attempts in the second half of the run."""
    late_skipped: int
    first: float
    last: float


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Steps that were attempted and skipped, early and late."""
    tally = _tally(record, list(record.of(ScalerUpdate)))
    if tally is None or tally.attempts < FEWEST:
        return
    share = tally.late_skipped / max(tally.late, 1)
    if share >= ALL:
        message = f"GradScaler skipped {tally.late_skipped} of the last {tally.late} steps"
        yield _finding(record, tally, message, STUCK, Severity.ERROR)
    elif share >= MANY and tally.late_skipped >= 5:
        message = f"GradScaler skipped {tally.late_skipped} of {tally.late} steps in the second half of the run"
        yield _finding(record, tally, message, LOSING, Severity.WARNING)
    elif tally.last <= COLLAPSED < tally.first and tally.skipped >= FEWEST / 2:
        message = f"GradScaler skipped {tally.skipped} of {tally.attempts} steps"
        yield _finding(record, tally, message, LOSING, Severity.WARNING)


def _tally(record: Record, updates: Sequence[ScalerUpdate]) -> _Tally | None:
    scales = [update.scale for update in updates if update.scale is not None]
    if not scales:
        return None
    last = updates[-1]
    attempts = last.step + last.skipped
    middle = next((update for update in updates if update.step + update.skipped >= attempts / 2), last)
    late = attempts - (middle.step + middle.skipped)
    return _Tally(attempts, last.skipped, late, last.skipped - middle.skipped, scales[0], scales[-1])


def _finding(record: Record, tally: _Tally, message: str, cause: str, severity: Severity) -> Finding:
    skipped = [event.place for event in record.of(StepSkipped)]
    steps = [event.place for event in record.of(OptimizerStep) if event.through_scaler]
    return rule.finding(
        f"{message}; its scale went from {tally.first:g} to {tally.last:g}.",
        cause=cause,
        fix="Find what overflows (unnormalized inputs, a sum or a large product in float16, too high a learning rate), "
        "or use bfloat16, which has the range of float32 and needs no scaler.",
        subject=Subject("call", "GradScaler"),
        place=(skipped or steps or [None])[-1],
        evidence=[
            Evidence("steps skipped", f"{tally.skipped} of {tally.attempts}"),
            Evidence("steps skipped in the second half", f"{tally.late_skipped} of {tally.late}"),
            Evidence("first scale", tally.first),
            Evidence("last scale", tally.last),
        ],
        severity=severity,
    )
