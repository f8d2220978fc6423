"""`unstuck run SCRIPT [ARGS]`: run a training script and say why it does not learn."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from unstuck.cli import common
from unstuck.cli.jobs import Job
from unstuck.cli.launchers import rank_among
from unstuck.cli.runs import Afterwards, folder_for, record_at, report_on, runs_by_age
from unstuck.cli.survivor import leave_behind
from unstuck.record.runs import FOLDER, remove_run

if TYPE_CHECKING:
    from unstuck.findings import Diagnosis
    from unstuck.findings.verdict import Verdict
    from unstuck.record import Record
    from unstuck.watch.monitor import Monitor

DESCRIPTION = """Run a training script as `python SCRIPT ARGS` would, watch it, and say why it does not learn.

Everything after SCRIPT belongs to the script. Its output is untouched; the report goes to stderr, and errors that
are certain while the script still runs are announced there at once."""
EPILOG = (
    common.EXIT_CODES
    + common.STOPPED_CODE
    + """
When the script itself ends with another code than 0, that code is passed on. Under a launcher (torchrun, mpirun,
srun, ...) findings count only if --fail-on is given, and then once all ranks have ended.
"""
)
WITH_VALUE = ("--format", "--output", "--html", "--fail-on", "--loss", "--every", "--stop-on")

NOWHERE = "not-recorded"
"""The name of a folder that could not be made."""


class Split(NamedTuple):
    """A command line cut in two: ours, and what belongs to the script."""

    ours: list[str]
    target: str | None
    theirs: list[str]
    as_module: bool


class Ran(NamedTuple):
    """A run that is over."""

    code: int
    folder: Path
    monitor: Monitor
    closely: int | None
    """The step around which every module was looked at."""

    def afterthoughts(self, record: Record, verdict: Verdict) -> Iterator[str]:
        """What was announced and is judged otherwise now, and what was waited for in vain."""
        from unstuck.events import NonFinite
        from unstuck.watch.announce import retractions

        yield from retractions(self.monitor.announced, verdict.diagnoses)
        if self.closely is not None and not any(record.of(NonFinite)):
            yield (
                f"--replay-nonfinite looked at every module around step {self.closely + 1}, and this time no value "
                "became NaN or infinite. Fix the seeds, so that the script repeats itself."
            )


def main(arguments: Sequence[str]) -> int:
    """Run the script under watch, then report."""
    split = split_arguments(arguments)
    parser = _parser()
    options = parser.parse_args(split.ours)
    if split.target is None:
        parser.error("name a script, such as: unstuck run train.py")
    job = Job(rank_among(os.environ), options)
    common.check_files(options)
    if importlib.util.find_spec("torch") is None:
        needed = "run needs PyTorch, which is not installed here: pip install torch"
        raise common.Stop(needed, common.MISSING_DEPENDENCY)
    # The script may change directory, or put something else in place of stderr.
    home, stream = os.getcwd(), job.stream(sys.stderr or open(os.devnull, "w"))  # noqa: SIM115
    for name in ("output", "html"):
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    from unstuck.capture.launch.interrupts import Interrupts

    with Interrupts() as interrupts:
        ran = _launch(split, options, stream, interrupts.program_ended, job)
        with _back_in(home):
            reported = _report(ran.folder, options, stream, ran.code, ran.afterthoughts)
            return job.exit_code(ran.code, reported, ran.folder, stream)


@contextlib.contextmanager
def _back_in(home: str) -> Iterator[None]:
    """In the directory we were called in. What the script still does at exit finds its own again."""
    try:
        there = os.getcwd()
    except OSError:
        there = home  # the script removed the directory it was in
    with contextlib.suppress(OSError):  # either may be gone by now
        os.chdir(home)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(there)


def split_arguments(arguments: Sequence[str], with_value: Sequence[str] = WITH_VALUE) -> Split:
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
        index += 2 if word in with_value else 1
    return Split(words, None, [], as_module=False)


def _parser() -> argparse.ArgumentParser:
    usage = "unstuck run [options] SCRIPT [ARGS ...]\n       unstuck run [options] -m MODULE [ARGS ...]"
    parser = common.verb_parser("run", DESCRIPTION, usage, EPILOG)
    common.add_report_options(parser)
    common.add_html_option(parser)
    parser.set_defaults(fail_on=None)  # whether it was given matters under a launcher
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        action="append",
        default=[],
        help="record what a loss of yours is given, for `unstuck surface LOSS --around latest`: MODULE:NAME, "
        "FILE.py:NAME, or NAME if the script defines it; may be repeated",
    )
    parser.add_argument(
        "--every",
        metavar="N",
        type=_whole,
        help="measure each N-th step, from the first, whatever it costs (default: all at first, then as many as cost "
        "next to nothing)",
    )
    parser.add_argument(
        "--stop-on",
        choices=("error", "warning"),
        help="end the script at the first such finding that is certain while it runs, as sys.exit would, with code 4",
    )
    parser.add_argument(
        "--replay-nonfinite",
        action="store_true",
        help="look at every module around the step in which the last run of this script met its first NaN or infinity; "
        "needs a script that repeats itself, so fix its seeds",
    )
    parser.add_argument("--quiet", action="store_true", help="print no report; the record and the exit code remain")
    return parser


def _whole(word: str) -> int:
    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word!r} is no whole number from 1 on")
    return int(word)


def _launch(split: Split, options: argparse.Namespace, stream: TextIO, when_ended: Callable[[], None], job: Job) -> Ran:
    from unstuck.capture import LaunchError, launch

    assert split.target is not None
    closely = _broken_step(split.target) if options.replay_nonfinite else None
    folder = _folder_for(job.record_name(split.target))
    if not _is_silent(options):
        common.mention_untried_torch()
    has_ended = mmap.mmap(-1, 1)  # shared with the process that is left behind: a full disk cannot tell it
    if not options.quiet:
        leave_behind(lambda: None if has_ended[0] else _report_if_killed(folder, options, stream))
    monitor = _monitor(folder, options, stream)
    try:
        code = launch(
            split.target,
            split.theirs,
            as_module=split.as_module,
            record_path=folder,
            losses=options.loss,
            every=options.every,
            closely=closely,
            listener=monitor,
            when_ended=when_ended,
        )
        has_ended[0] = 1
        return Ran(code, folder, monitor, closely)
    except LaunchError as error:
        remove_run(folder)
        raise common.Stop(str(error)) from None


def _folder_for(target: str) -> Path:
    """Where the record goes. Where no folder can be made, the writer says so, and the script runs all the same."""
    try:
        return folder_for(target)
    except OSError:
        return FOLDER.absolute() / NOWHERE


def _broken_step(target: str) -> int:
    """The step in which the last run of this script met its first non-finite value."""
    from unstuck.events import NonFinite
    from unstuck.record import RecordError, read

    for folder in runs_by_age():
        try:
            record = read(folder)
        except RecordError:
            continue
        if record.started.script == target:
            broken = next(record.of(NonFinite), None)
            if broken is not None:
                return broken.step
            raise common.Stop(f"the last run of {target} met no NaN or infinity, so there is nothing to replay.")
    raise common.Stop(f"there is no run of {target} on record here; run it once without --replay-nonfinite.")


def _monitor(folder: Path, options: argparse.Namespace, stream: TextIO) -> Monitor:
    from unstuck.record.store import record_file
    from unstuck.watch.monitor import Monitor

    is_silent = _is_silent(options)

    def tell(diagnosis: Diagnosis) -> None:
        from unstuck.watch.announce import announce

        if not is_silent:
            announce(diagnosis, stream)

    return Monitor(record_file(folder), tell, options.stop_on)


def _is_silent(options: argparse.Namespace) -> bool:
    """A report for programs that goes to the same stream must stay alone there."""
    return bool(options.quiet or (options.format != "text" and not options.output))


def _report(
    folder: Path,
    options: argparse.Namespace,
    stream: TextIO,
    code: int | None,
    afterwards: Afterwards = lambda record, verdict: (),
) -> int:
    """Report on the run. Whatever goes wrong here, the exit code is the script's own."""
    try:
        more = (lambda record, verdict: ()) if _is_silent(options) else afterwards
        ours = report_on(record_at(folder), folder, "run", options, None if options.quiet else stream, more, code)
        if options.output and not options.quiet:
            print(f"unstuck: the report is in {options.output}", file=stream)
        if options.html and not options.quiet:
            print(f"unstuck: the page is {options.html}", file=stream)
    except common.Stop as stop:
        if not _is_explained(folder):
            _say(f"unstuck: {stop}", stream)
        return code or common.CLEAN
    except OSError as error:
        what = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        _say(f"unstuck: there is no report, since the system refused something ({what}).", stream)
        return code or common.CLEAN
    except Exception as error:
        if os.environ.get("UNSTUCK_RAISE"):
            raise
        _say(common.apology(error), stream)
        return code or common.CLEAN
    return code or ours


def _say(sentence: str, stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # the stream itself may be what failed: full, or closed
        print(sentence, file=stream, flush=True)


def _report_if_killed(folder: Path, options: argparse.Namespace, stream: TextIO) -> None:
    """What has told its end has been reported on, and what trained nothing has nothing to tell."""
    from unstuck.judge import TRAINING
    from unstuck.record import RecordError, has_ended, read

    with contextlib.suppress(RecordError, OSError):
        if not has_ended(folder) and any(read(folder).of(*TRAINING)):
            _report(folder, options, stream, None)


def _is_explained(folder: Path) -> bool:
    """Has the launcher said why there is no record? A disk that is full or cannot be written leaves no line."""
    from unstuck.record.store import record_file
    from unstuck.regular import open_regular

    try:
        with open_regular(record_file(folder)) as record:
            return b"\n" not in record.read(2**16)
    except OSError:
        return folder.name == NOWHERE
