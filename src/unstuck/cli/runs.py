"""The runs on record here, and the report on one of them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

import msgspec

from unstuck.cli import common
from unstuck.findings.verdict import Verdict
from unstuck.record import RECORD_NAME, Record, RecordError, read
from unstuck.record.runs import RUNS, new_run_folder_somewhere, run_folders
from unstuck.record.store import record_file
from unstuck.watch.outcome import result_of


def folder_for(target: str) -> Path:
    """A new folder for the record of one run; where that is not in `.unstuck`, a sentence says so."""
    folder, moved = new_run_folder_somewhere(target)
    if moved:
        print(f"unstuck: {moved}", file=sys.stderr)
    return folder


def record_at(path: Path) -> Record:
    """The record at a path, or a sentence."""
    try:
        return read(_watched_in(path))
    except RecordError as error:
        raise common.Stop(str(error)) from None


def _watched_in(path: Path) -> Path:
    """Where the record is: of a diagnosis, that of its first trial, which was watched."""
    if path.is_dir() and not os.path.lexists(record_file(path)):
        trials = sorted(path.glob(f"*/{RECORD_NAME}"))
        if trials:
            print(
                f"unstuck: {path} is a diagnosis; this is the run that it watched. `unstuck diagnose` proves again.",
                file=sys.stderr,
            )
            return trials[0].parent
    return path


def latest_record() -> tuple[Path, Record]:
    """The newest run that was started here and can be read; what cannot be is named and passed over."""
    folders = runs_by_age()
    for folder in folders:
        try:
            return folder, read(_watched_in(folder))
        except RecordError as error:
            print(f"unstuck: {error}", file=sys.stderr)
    none = "no run can be read" if folders else "there is no run on record"
    raise common.Stop(f"{none} in {RUNS}; make one with: unstuck run train.py")


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
    except OSError as error:
        raise common.Stop(f"the runs on record cannot be listed ({error.strerror}: {error.filename}).") from None


def _age(folder: Path) -> tuple[str, int, str]:
    try:
        changed = folder.lstat().st_mtime_ns
    except OSError:
        changed = 0  # another process has just removed it, or it is not ours to look at
    return folder.name[:15], changed, folder.name


Afterwards = Callable[[Record, Verdict], Iterable[str]]
"""Sentences to stand below a report."""


def report_on(
    record: Record,
    path: Path,
    command: str,
    options: argparse.Namespace,
    stream: TextIO | None,
    afterwards: Afterwards = lambda record, verdict: (),
    ended_with: int | None = None,
) -> int:
    """Judge the record kept at `path`, publish the report, and return the exit code.

    `ended_with`: the code the script is known to have ended with, whether that is on record or not.
    """
    result = result_of(record, path, command, ended_with=ended_with)
    if options.html and result.run is not None:  # a hint at what was asked for would be noise
        result = msgspec.structs.replace(result, run=msgspec.structs.replace(result.run, has_pictures=False))
    common.publish(result, options, stream)
    if options.html:
        from unstuck.findings.investigation import Investigation
        from unstuck.report.html import page

        common.write_whole(Path(options.html), page(Investigation(result=result, folder=path)))
    if stream is not None:
        for sentence in afterwards(record, result.verdict):
            print(f"unstuck: {sentence}", file=stream)
    return common.exit_code(result.verdict, options.fail_on)
