"""From a record to a result: judged by all rules, with the text of the script as a second witness."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from unstuck.events import RunStatus
from unstuck.findings.result import Result
from unstuck.findings.run_summary import run_summary
from unstuck.judge import judge, spelled
from unstuck.record import Record
from unstuck.source.what_ran import is_what_ran, script_of


def result_of(
    record: Record, path: Path, command: str, so_far: int | None = None, ended_with: int | None = None
) -> Result:
    """The answer of `command` about the record at `path`; `so_far`: the steps of a run that is still going on;
    `ended_with`: the exit code of one that has ended, whether that is on record or not."""
    if so_far is not None:
        record = msgspec.structs.replace(record, is_running=True)
    script = script_of(record)
    verdict = judge(scripts=(script,) if script else (), record=record)
    ran = record.started.script
    is_other_text = os.path.isfile(ran) and not is_what_ran(ran, record)
    changed = frozenset({spelled(ran)}) if is_other_text else frozenset()
    run = run_summary(record, _typed(path), verdict)
    if ended_with is not None and record.ended is None:
        run = msgspec.structs.replace(run, status=RunStatus.UNRECORDED, exit_code=ended_with)
    if so_far is not None:
        run = msgspec.structs.replace(run, status=RunStatus.RUNNING, steps=so_far)
    return Result(command=command, verdict=verdict, run=run, changed=changed)


def _typed(path: Path) -> str:
    """The path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
