"""The crash of a binary loss over (N, 1) against (N,)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Finding, Subject
from unstuck.rules.shared.crashes import called, crash_of, evidence_of, given, shaped

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.rule import Rule


def explain(record: Record, rule: Rule) -> Iterator[Finding]:
    """The finding, if one of the two shapes has exactly one more axis."""
    crash = crash_of(record, "must be the same as input size", "different to the input size")
    scores, target = (given(crash, name) if crash is not None else None for name in ("input", "target"))
    if crash is None or scores is None or target is None:
        return
    first, second = scores.shape or (), target.shape or ()
    if first == (*second, 1):
        name = crash.names.get("input", "prediction")
        fix = f"Drop the last axis of the prediction: `{name}.squeeze(-1)`."
    elif second == (*first, 1):
        fix = f"Drop the last axis of the target: `{crash.names.get('target', 'target')}.squeeze(-1)`."
    else:
        return
    yield rule.finding(
        f"{crash.function} gets a prediction of shape {shaped(first)} and "
        f"{called(crash, 'target', 'a target')} of shape {shaped(second)}.",
        cause="This loss requires equal shapes and raises a ValueError.",
        fix=fix,
        subject=Subject("call", f"{crash.function} at {crash.place}"),
        place=crash.place,
        evidence=evidence_of(crash, "input", "target"),
    )
