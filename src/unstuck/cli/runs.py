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
from unstuck.record.runs import RUNS, new_run_folder_somewhere, places_of_runs, run_folders
from unstuck.record.store import record_file
from unstuck.result import result_of

MOST_NEAR = 3
"""Runs that are suggested where none has the name that was given."""


def folder_for(target: str) -> Path:
    """A new folder for the record of one run; prints a sentence if it is not in `.unstuck`."""
    folder, moved = new_run_folder_somewhere(target)
    if moved:
        print(f"unstuck: {moved}", file=sys.stderr)
    return folder


def record_at(path: Path) -> Record:
    """The record at a path; an unreadable one ends the command with one sentence."""
    try:
        return read(_watched_in(path))
    except RecordError as error:
        raise common.Stop(str(error)) from None


def _watched_in(path: Path) -> Path:
    """The folder of the record; of a diagnosis or an experiment that of its first trial, the run as it is."""
    if path.is_dir() and not os.path.lexists(record_file(path)):
        refuse_all_runs(path)
        trials = sorted(path.glob(f"*/{RECORD_NAME}"))
        if trials:
            print(
                f"unstuck: {path} holds the runs of an experiment or a diagnosis; this is the first, the script as it "
                "is.",
                file=sys.stderr,
            )
            return trials[0].parent
    return path


def refuse_all_runs(path: Path) -> None:
    """End the command if this is the folder of all runs."""
    if os.path.realpath(path) == os.path.realpath(RUNS):
        raise common.Stop(f"{path} holds all runs; name one of them.")


def latest_record() -> tuple[Path, Record]:
    """The newest readable run in this folder; unreadable ones are reported and skipped."""
    folders = runs_by_age()
    for folder in folders:
        try:
            return folder, read(_watched_in(folder))
        except RecordError as error:
            print(f"unstuck: {error}", file=sys.stderr)
    none = "no readable run" if folders else "no run"
    raise common.Stop(f"there is {none} in {RUNS}; record one with: unstuck run train.py")


def run_named(word: str) -> Path:
    """The path itself, or the run of this name in this folder; a word that is neither ends the command."""
    path = Path(word)
    if path.exists() or not word:
        return path
    for place in places_of_runs(strict=False):
        if (place / word).is_dir():
            return place / word
    near = _near(path.name)
    advice = f"did you mean {near}?" if near else "without a name, the newest is taken."
    raise common.Stop(f"there is no run {word!r} here; {advice}")


def _near(word: str) -> str:
    """The newest runs with the word in their name, or the one with the most similar name."""
    from difflib import get_close_matches

    names = [folder.name for folder in runs_by_age()]
    part = word.removesuffix(".py")
    near = [name for name in names if part and part in name] or get_close_matches(word, names, 1)
    return " or ".join(near[:MOST_NEAR])


def runs_by_age() -> list[Path]:
    """The records of all runs in this folder, newest first."""
    try:
        return sorted(run_folders(), key=_age, reverse=True)
    except RecordError as refusal:
        raise common.Stop(str(refusal)) from None
    except OSError as error:
        raise common.Stop(f"cannot list the recorded runs ({error.strerror}: {error.filename}).") from None


def _age(folder: Path) -> tuple[str, int, str]:
    try:
        changed = folder.lstat().st_mtime_ns
    except OSError:
        changed = 0  # removed by another process, or not readable
    return folder.name[:15], changed, folder.name


Afterwards = Callable[[Record, Verdict], Iterable[str]]
"""Sentences to print below a report."""


def report_on(
    record: Record,
    path: Path,
    command: str,
    options: argparse.Namespace,
    stream: TextIO | None,
    afterwards: Afterwards = lambda record, verdict: (),
    ended_with: int | None = None,
) -> int:
    """Judge the record at `path`, publish the report, and return the exit code.

    `ended_with`: the script's exit code, if it is known and may be missing in the record.
    """
    result = result_of(record, path, command, ended_with=ended_with)
    if options.html and result.run is not None:  # no hint at --html for a user who just used it
        result = msgspec.structs.replace(result, run=msgspec.structs.replace(result.run, has_pictures=False))
    common.publish(result, options, stream)
    if options.html:
        from unstuck.findings.investigation import Investigation
        from unstuck.view.html import page, page_of
        from unstuck.view.store import kept

        shown = kept(path)
        done = Investigation(result=result, folder=path)
        common.write_whole(Path(options.html), page_of(shown) if shown is not None else page(done, record))
    if stream is not None:
        for sentence in afterwards(record, result.verdict):
            print(f"unstuck: {sentence}", file=stream)
    return common.exit_code(result.verdict, options.fail_on)
