"""When the record of a run first showed each finding: the run is judged again as it was after its first steps."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from unstuck.events import Event, RunEnded
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.record import Record
from unstuck.view.answer import key_of

SECONDS = 1.5
"""What all judgements of beginnings together may take; what is not known by then has no step."""
FIRST = 10
GROWTH = 3


def first_seen(record: Record, verdict: Verdict, seconds: float = SECONDS) -> dict[str, int]:
    """For each finding of the run that shows in a beginning of it and in all longer ones: the steps of the shortest.

    Shorter beginnings are judged first, so that a limit of time leaves out late findings.
    """
    wanted = {key_of(diagnosis) for diagnosis in verdict.diagnoses}
    last = max((event.step for event in record.events), default=0)
    began = time.perf_counter()
    found: dict[str, int] = {}
    steps = FIRST
    while wanted and steps < last:
        then = {key_of(diagnosis) for diagnosis in judge(record=beginning(record, steps)).diagnoses}
        found = {key: found.get(key, steps) for key in then & wanted}
        took = time.perf_counter() - began
        if took > seconds:
            break
        steps *= GROWTH
    return found


def beginning(record: Record, steps: int) -> Record:
    """The record as it was after so many steps, still being written."""
    events: Sequence[Event] = [e for e in record.events if e.step < steps and not isinstance(e, RunEnded)]
    return msgspec.structs.replace(record, events=tuple(events), is_running=True)
