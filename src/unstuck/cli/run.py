"""`unstuck run SCRIPT [ARGS]`: run a training script and say why it does not learn."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from unstuck.cli import common
from unstuck.cli.runs import new_run_folder, report_on

DESCRIPTION = """Run a training script as `python SCRIPT ARGS` would, watch it, and say why it does not learn.

Everything after SCRIPT belongs to the script. Its output is untouched; the report goes to stderr."""
EPILOG = (
    common.EXIT_CODES
    + """
When the script itself ends with another code than 0, that code is passed on.
"""
)
WITH_VALUE = ("--format", "--output", "--fail-on", "--loss")


class Split(NamedTuple):
    """A command line cut in two: ours, and what belongs to the script."""

    ours: list[str]
    target: str | None
    theirs: list[str]
    as_module: bool


def main(arguments: Sequence[str]) -> int:
    """Run the script under watch, then report."""
    split = split_arguments(arguments)
    parser = _parser()
    options = parser.parse_args(split.ours)
    if split.target is None:
        parser.error("name a script, such as: unstuck run train.py")
    common.check_output(options.output)
    if importlib.util.find_spec("torch") is None:
        needed = "run needs PyTorch, which is not installed here: pip install torch"
        raise common.Stop(needed, common.MISSING_DEPENDENCY)
    # The script may change directory, or put something else in place of stderr.
    home, stream = os.getcwd(), sys.stderr
    if options.output:
        options.output = os.path.abspath(options.output)
    code, folder = _launch(split.target, split.theirs, split.as_module, options.loss)
    with _back_in(home):
        return _report(folder, options, stream, code)


@contextlib.contextmanager
def _back_in(home: str) -> Iterator[None]:
    """In the directory we were called in. What the script still does at exit finds its own again."""
    try:
        there = os.getcwd()
    except OSError:
        there = home  # the script removed the directory it was in
    os.chdir(home)
    try:
        yield
    finally:
        os.chdir(there)


def split_arguments(arguments: Sequence[str]) -> Split:
    """Our options come before the script; whatever follows it is the script's own, untouched."""
    words = list(arguments)
    index = 0
    while index < len(words):
        word = words[index]
        if word in ("-m", "--"):
            rest = words[index + 1 :]
            return Split(words[:index], rest[0] if rest else None, rest[1:], as_module=word == "-m")
        if not word.startswith("-"):
            return Split(words[:index], word, words[index + 1 :], as_module=False)
        index += 2 if word in WITH_VALUE else 1
    return Split(words, None, [], as_module=False)


def _parser() -> argparse.ArgumentParser:
    usage = "unstuck run [options] SCRIPT [ARGS ...]\n       unstuck run [options] -m MODULE [ARGS ...]"
    parser = common.verb_parser("run", DESCRIPTION, usage, EPILOG)
    common.add_report_options(parser)
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        action="append",
        default=[],
        help="record what a loss of yours is given, for `unstuck surface LOSS --around latest`: MODULE:NAME, "
        "FILE.py:NAME, or NAME if the script defines it; may be repeated",
    )
    parser.add_argument("--quiet", action="store_true", help="print no report; the record and the exit code remain")
    return parser


def _launch(target: str, theirs: list[str], as_module: bool, losses: list[str]) -> tuple[int, Path]:
    from unstuck.capture import LaunchError, launch

    folder, moved = new_run_folder(target)
    if moved:
        print(f"unstuck: {moved}", file=sys.stderr)
    try:
        return launch(target, theirs, as_module=as_module, record_path=folder, losses=losses), folder
    except LaunchError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise common.Stop(str(error)) from None


def _report(folder: Path, options: argparse.Namespace, stream: TextIO, code: int) -> int:
    """Report on the run. Whatever goes wrong here, the script's own failure stays the exit code."""
    try:
        ours = report_on(folder, "run", options, None if options.quiet else stream)
        if options.output and not options.quiet:
            print(f"unstuck: the report is in {options.output}", file=stream)
    except common.Stop as stop:
        print(f"unstuck: {stop}", file=stream)
        ours = stop.code
    except Exception as error:
        if not code or os.environ.get("UNSTUCK_RAISE"):
            raise
        print(common.apology(error), file=stream)
        return code
    return code or ours
