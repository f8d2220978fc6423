"""From a record to a result: judged by all rules, with the text of the script as a second witness."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from unstuck.findings.result import Result
from unstuck.findings.run_summary import run_summary
from unstuck.findings.verdict import Verdict
from unstuck.judge import is_what_ran, judge, script_of, spelled
from unstuck.record import Record
from unstuck.record.gaps import NO_END


def result_of(
    record: Record, path: Path, command: str, so_far: int | None = None, ended_with: int | None = None
) -> Result:
    """The answer of `command` about the record kept at `path`; `so_far`: the steps of a run that still goes on;
    `ended_with`: the exit code of one that has ended, be that on record or not."""
    script = script_of(record)
    verdict = judge(scripts=(script,) if script else (), record=record)
    ran = record.started.script
    is_other_text = os.path.isfile(ran) and not is_what_ran(ran, record)
    changed = frozenset({spelled(ran)}) if is_other_text else frozenset()
    run = run_summary(record, _typed(path), verdict)
    if ended_with is not None and record.ended is None:
        run = msgspec.structs.replace(run, status="unrecorded", exit_code=ended_with)
    if so_far is not None:
        verdict, run = _so_far(verdict), msgspec.structs.replace(run, status="running", steps=so_far)
    return Result(command=command, verdict=verdict, run=run, changed=changed)


def _so_far(verdict: Verdict) -> Verdict:
    left = tuple(sentence for sentence in verdict.not_checked if sentence != NO_END)
    return msgspec.structs.replace(verdict, not_checked=left)


def _typed(path: Path) -> str:
    """The path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
