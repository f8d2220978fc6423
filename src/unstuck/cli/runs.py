"""The runs on record here, and the report on one of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

import msgspec

from unstuck.cli import common
from unstuck.judge import Verdict
from unstuck.live.outcome import result_of
from unstuck.record import Record, RecordError, read
from unstuck.record.runs import RUNS, new_run_folder, run_folders


def folder_for(target: str) -> Path:
    """A new folder for the record of one run; where that is not beside the script, it is said."""
    try:
        folder, moved = new_run_folder(target)
    except RecordError as refusal:
        raise common.Stop(str(refusal)) from None
    if moved:
        print(f"unstuck: {moved}", file=sys.stderr)
    return folder


def latest_run() -> Path:
    """The newest record of a run that was started here."""
    folders = runs_by_age()
    if not folders:
        raise common.Stop(f"there is no run on record in {RUNS}; make one with: unstuck run train.py")
    return folders[0]


def run_named(word: str) -> Path:
    """The record at a path, or the run of this name that was started here."""
    path, here = Path(word), RUNS / word
    return here if not path.exists() and here.is_dir() else path


def runs_by_age() -> list[Path]:
    """The records of all runs that were started here, the newest first."""
    try:
        return sorted(run_folders(), key=_age, reverse=True)
    except RecordError as refusal:
        raise common.Stop(str(refusal)) from None


def _age(folder: Path) -> tuple[str, int, str]:
    try:
        changed = folder.lstat().st_mtime_ns
    except OSError:
        changed = 0  # another process has just removed it
    return folder.name[:15], changed, folder.name


Afterwards = Callable[[Record, Verdict], Iterable[str]]
"""Sentences to stand below a report."""


def report_on(
    path: Path,
    command: str,
    options: argparse.Namespace,
    stream: TextIO | None,
    afterwards: Afterwards = lambda record, verdict: (),
) -> int:
    """Judge the record at `path`, publish the report, and return the exit code."""
    try:
        record = read(path)
    except RecordError as error:
        raise common.Stop(str(error)) from None
    result = result_of(record, path, command)
    if options.html and result.run is not None:  # a hint at what was asked for would be noise
        result = msgspec.structs.replace(result, run=msgspec.structs.replace(result.run, has_pictures=False))
    common.publish(result, options, stream)
    if options.html:
        from unstuck.experiments.investigation import Investigation
        from unstuck.report.html import page

        common.write_whole(Path(options.html), page(Investigation(result=result, folder=path)))
    if stream is not None:
        for sentence in afterwards(record, result.verdict):
            print(f"unstuck: {sentence}", file=stream)
    return common.exit_code(result.verdict, options.fail_on)
