"""Where records of runs are kept, and the report on one of them."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TextIO

from unstuck.cli import common
from unstuck.judge import is_what_ran, judge, script_of, spelled
from unstuck.record import RecordError, read
from unstuck.report.result import Result, run_summary

FOLDER = Path(".unstuck")


def new_run_folder(target: str) -> tuple[Path, str]:
    """A new folder for the record of one run, and a sentence where it could not be put beside the script."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{_word_for(target)}"
    try:
        return _unique_folder(FOLDER.absolute() / "runs", name), ""
    except OSError as error:
        folder = _unique_folder(Path(tempfile.gettempdir()) / "unstuck", name)
        return (
            folder,
            f"the record goes to {folder}, because {FOLDER} cannot be written here ({error.strerror}).",
        )


def _unique_folder(runs: Path, name: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    ignore = runs.parent / ".gitignore"
    if runs.parent.name == FOLDER.name and not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    for attempt in range(1, 10_000):
        folder = runs / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise OSError(f"{runs} is full")


def _word_for(target: str) -> str:
    stem = Path(target).name.removesuffix(".py")
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in stem)[:60] or "run"


def latest_run() -> Path:
    """The newest record under `.unstuck/runs`."""
    runs = FOLDER / "runs"
    folders = [folder for folder in runs.iterdir() if folder.is_dir()] if runs.is_dir() else []
    if not folders:
        raise common.Stop(f"there is no run on record in {runs}; make one with: unstuck run train.py")
    return max(folders, key=lambda folder: (folder.name[:15], folder.stat().st_mtime_ns, folder.name))


def report_on(path: Path, command: str, options: argparse.Namespace, stream: TextIO | None) -> int:
    """Judge the record at `path`, publish the report, and return the exit code."""
    try:
        record = read(path)
    except RecordError as error:
        raise common.Stop(str(error)) from None
    script = script_of(record)
    verdict = judge(scripts=(script,) if script else (), record=record)
    ran = record.started.script
    is_other_text = os.path.isfile(ran) and not is_what_ran(ran, record)
    changed = frozenset({spelled(ran)}) if is_other_text else frozenset()
    result = Result(command=command, verdict=verdict, run=run_summary(record, _typed(path)), changed=changed)
    common.publish(result, options, stream)
    return common.exit_code(verdict, options.fail_on)


def _typed(path: Path) -> str:
    """The path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
