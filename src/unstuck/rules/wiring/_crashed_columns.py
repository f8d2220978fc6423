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
    """The finding, if one of the two has just one axis more."""
    crash = crash_of(record, "must be the same as input size", "different to the input size")
    scores, target = (given(crash, name) if crash is not None else None for name in ("input", "target"))
    if crash is None or scores is None or target is None:
        return
    first, second = scores.shape or (), target.shape or ()
    if first == (*second, 1):
        name = crash.names.get("input", "prediction")
        fix = f"Take the last axis of the prediction away: `{name}.squeeze(-1)`."
    elif second == (*first, 1):
        fix = f"Take the last axis of the target away: `{crash.names.get('target', 'target')}.squeeze(-1)`."
    else:
        return
    yield rule.finding(
        f"{crash.function} is given a prediction of shape {shaped(first)} and {called(crash, 'target', 'a target')} of "
        f"shape {shaped(second)}.",
        cause="The two sizes must be the same for this loss: it raises a ValueError.",
        fix=fix,
        subject=Subject("call", f"{crash.function} at {crash.place}"),
        place=crash.place,
        evidence=evidence_of(crash, "input", "target"),
    )
