"""`unstuck run SCRIPT [ARGS]`: run a training script and report why it does not learn."""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from unstuck.cli import common
from unstuck.cli.after_kill import report_when_ended
from unstuck.cli.jobs import Job
from unstuck.cli.launchers import rank_among
from unstuck.cli.runs import Afterwards, folder_for, record_at, report_on, runs_by_age
from unstuck.cli.scripts import require_script
from unstuck.record.runs import FOLDER, remove_run
from unstuck.regular import LARGEST_SCRIPT, read_regular

if TYPE_CHECKING:
    from unstuck.capture.session import Listener
    from unstuck.findings import Diagnosis
    from unstuck.findings.verdict import Verdict
    from unstuck.record import Record
    from unstuck.watch.forwarding import Forwarding
    from unstuck.watch.monitor import Monitor

HELP = "run a training script and report why it does not learn"
GROUP = "cause"

DESCRIPTION = """Run a training script as `python SCRIPT ARGS` would, watch it, and report why it does not learn.

Everything after SCRIPT is passed to the script. Its output is unchanged; the report goes to stderr,
and errors that are certain while the script is running are announced there at once."""
EPILOG = (
    common.EXIT_CODES
    + common.STOPPED_CODE
    + """
If the script exits with a code other than 0, that code is used. Under a launcher (torchrun, mpirun,
srun, ...) findings change the exit code only with --fail-on, and only after all ranks have ended.
"""
)
WITH_VALUE = ("--format", "--output", "--html", "--fail-on", "--loss", "--every", "--stop-on", "--to")

READS_ARGUMENTS = re.compile("arg|click|typer|fire|hydra|tyro|docopt|flags|getopt|cli|conf", re.IGNORECASE)
"""What a script that reads its command line, here or in a module of its own, is likely to mention."""

NOWHERE = "not-recorded"
"""The name of a folder that could not be created."""


class Split(NamedTuple):
    """A command line in two parts: our options, and the script with its arguments."""

    ours: list[str]
    target: str | None
    theirs: list[str]
    as_module: bool


class Ran(NamedTuple):
    """A finished run."""

    code: int
    folder: Path
    monitor: Monitor
    replayed_step: int | None
    """The step around which every module was checked."""
    forwarding: Forwarding | None
    """To trackers, if any was asked for."""

    def closing_sentences(self, record: Record, verdict: Verdict) -> Iterator[str]:
        """Which announced errors the complete run contradicts, and whether a replay met a non-finite value."""
        from unstuck.events import NonFinite
        from unstuck.watch.announce import retractions

        yield from retractions(self.monitor.announced, verdict.diagnoses)
        if self.replayed_step is not None and not any(record.of(NonFinite)):
            yield (
                f"--replay-nonfinite checked every module around step {self.replayed_step + 1}, but this time no value "
                "became NaN or infinite. Set the seeds, so that the script repeats itself."
            )


def main(arguments: Sequence[str]) -> int:
    """Run and watch the script, then report."""
    split = split_arguments(arguments)
    parser = _parser()
    options = parser.parse_args(split.ours)
    if split.target is None:
        parser.error("name a script, such as: unstuck run train.py")
    job = Job(rank_among(os.environ), options)
    common.check_files(options)
    if not split.as_module:
        require_script(split.target)
    trackers = _trackers(options.to)
    common.require_torch("run")
    mention_misplaced(parser, split)
    # The script may change the directory or replace stderr.
    home, stream = os.getcwd(), job.stream(sys.stderr or open(os.devnull, "w"))  # noqa: SIM115
    for name in ("output", "html"):
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    from unstuck.capture.launch.interrupts import Interrupts

    with Interrupts() as interrupts:
        ran = _launch(split, options, stream, interrupts.program_ended, job, trackers)
        with _back_in(home):
            reported = _report(ran.folder, options, stream, ran.code, ran.closing_sentences)
            if ran.forwarding is not None:
                ran.forwarding.end()
            return job.exit_code(ran.code, reported, ran.folder, stream)


@contextlib.contextmanager
def _back_in(home: str) -> Iterator[None]:
    """Run in the directory we were called in; exit handlers of the script find theirs again."""
    try:
        there = os.getcwd()
    except OSError:
        there = home  # the script removed the directory it was in
    with contextlib.suppress(OSError):  # either may have been removed
        os.chdir(home)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.chdir(there)


def split_arguments(arguments: Sequence[str], with_value: Sequence[str] = WITH_VALUE) -> Split:
    """Our options come before the script; everything after it is passed to the script unchanged."""
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


def mention_misplaced(parser: argparse.ArgumentParser, split: Split) -> None:
    """One line on stderr about options of ours behind a script that seems to read no arguments."""
    if split.as_module or split.target is None:
        return
    ours = [word for word in split.theirs if word.startswith("--") and word.partition("=")[0] in options_of(parser)]
    if not ours:
        return
    with contextlib.suppress(OSError):
        text = read_regular(split.target, LARGEST_SCRIPT).decode(errors="replace")
        if not READS_ARGUMENTS.search(text):
            sentence = f"{ours[0]} comes after {split.target} and is passed to it; put options of unstuck before it."
            print(f"unstuck: {sentence}", file=sys.stderr)


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every long option, such as `--html`."""
    return {word for action in parser._actions for word in action.option_strings if word.startswith("--")}


def _parser() -> argparse.ArgumentParser:
    usage = "unstuck run [options] SCRIPT [ARGS ...]\n       unstuck run [options] -m MODULE [ARGS ...]"
    parser = common.verb_parser("run", DESCRIPTION, usage, EPILOG)
    common.add_report_options(parser)
    common.add_html_option(parser)
    parser.set_defaults(fail_on=None)  # under a launcher it matters whether the option was used
    parser.add_argument(
        "--loss",
        metavar="LOSS",
        action="append",
        default=[],
        help="record the inputs of your loss function, for `unstuck surface LOSS --around latest`: MODULE:NAME, "
        "FILE.py:NAME, or NAME if the script defines it; may be repeated",
    )
    parser.add_argument(
        "--every",
        metavar="N",
        type=common.positive_integer,
        help="measure every Nth step, from the first, at any cost (default: all at first, then as many as take less "
        "than 1 %% of the time)",
    )
    parser.add_argument(
        "--stop-on",
        choices=("error", "warning"),
        help="end the script with exit code 4, as sys.exit would, at the first such finding that is certain",
    )
    parser.add_argument(
        "--replay-nonfinite",
        action="store_true",
        help="check every module around the step in which the last run of this script had its first NaN or infinity; "
        "the script must repeat itself, so set its seeds",
    )
    parser.add_argument(
        "--view", action="store_true", help="also serve the live page of this run, and print its address (see `view`)"
    )
    parser.add_argument(
        "--to",
        metavar="TRACKER",
        action="append",
        default=[],
        help="also forward losses, rates, norms, histograms and findings to tensorboard, wandb, mlflow or trackio "
        "while the script runs; may be repeated",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print no report; the record and the exit code stay the same"
    )
    return parser


def _launch(
    split: Split,
    options: argparse.Namespace,
    stream: TextIO,
    when_ended: Callable[[], None],
    job: Job,
    trackers: Sequence[str],
) -> Ran:
    from unstuck.capture import LaunchError, launch

    assert split.target is not None
    replayed_step = _broken_step(split.target) if options.replay_nonfinite else None
    folder = _folder_for(job.record_name(split.target))
    if not _is_silent(options):
        common.mention_untried_torch()
    has_ended = mmap.mmap(-1, 1)  # shared with the process that outlives us: on a full disk the record has no end
    if not options.quiet:
        report_when_ended(lambda: None if has_ended[0] else _report_if_killed(folder, options, stream))
    if options.view and job.is_first and folder.is_dir():
        from unstuck.cli.viewing import serve_aside

        serve_aside(folder)
    monitor = _monitor(folder, options, stream)
    forwarding = _forwarding(trackers, folder, options, stream) if trackers and job.is_first else None
    listener: Listener = monitor
    if forwarding is not None:
        from unstuck.watch.forwarding import Together

        listener = Together(forwarding, monitor)
    try:
        code = launch(
            split.target,
            split.theirs,
            as_module=split.as_module,
            record_path=folder,
            losses=options.loss,
            every=options.every,
            closely=replayed_step,
            listener=listener,
            when_ended=when_ended,
        )
        has_ended[0] = 1
        return Ran(code, folder, monitor, replayed_step, forwarding)
    except LaunchError as error:
        if forwarding is not None:
            forwarding.abandon()
        remove_run(folder)
        raise common.Stop(str(error)) from None


def _folder_for(target: str) -> Path:
    """The folder for the record. If it cannot be created, the writer says so, and the script still runs."""
    try:
        return folder_for(target)
    except OSError:
        return FOLDER.absolute() / NOWHERE


def _broken_step(target: str) -> int:
    """The step in which the last run of this script had its first non-finite value."""
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
            raise common.Stop(f"the last run of {target} had no NaN or infinity, so there is nothing to replay.")
    raise common.Stop(f"there is no recorded run of {target} here; run it once without --replay-nonfinite.")


def _monitor(folder: Path, options: argparse.Namespace, stream: TextIO) -> Monitor:
    from unstuck.record.store import record_file
    from unstuck.watch.monitor import Monitor

    is_silent = _is_silent(options)

    def tell(diagnosis: Diagnosis) -> None:
        from unstuck.watch.announce import announce

        if not is_silent:
            announce(diagnosis, stream)

    return Monitor(record_file(folder), tell, options.stop_on)


def _trackers(wanted: Sequence[str]) -> tuple[str, ...]:
    """What `--to` names; a name that is wrong ends the command before the script begins."""
    if not wanted:
        return ()
    from unstuck.watch.forwarding import checked

    try:
        return checked([name for word in wanted for name in word.split(",")])
    except ValueError as error:
        raise common.Stop(str(error)) from None


def _forwarding(trackers: Sequence[str], folder: Path, options: argparse.Namespace, stream: TextIO) -> Forwarding:
    from unstuck.watch.forwarding import Forwarding

    is_silent = options.format != "text" and not options.output
    return Forwarding(trackers, folder, lambda sentence: None if is_silent else _say(f"unstuck: {sentence}", stream))


def _is_silent(options: argparse.Namespace) -> bool:
    """Is stderr reserved for a report that a program reads?"""
    return bool(options.quiet or (options.format != "text" and not options.output))


def _report(
    folder: Path,
    options: argparse.Namespace,
    stream: TextIO,
    code: int | None,
    afterwards: Afterwards = lambda record, verdict: (),
) -> int:
    """Report on the run. If that fails, the exit code is still the script's own."""
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
        _say(f"unstuck: the report could not be written ({what}).", stream)
        return code or common.CLEAN
    except Exception as error:
        if os.environ.get("UNSTUCK_RAISE"):
            raise
        _say(common.apology(error), stream)
        return code or common.CLEAN
    return code or ours


def _say(sentence: str, stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # the stream itself may be full or closed
        print(sentence, file=stream, flush=True)


def _report_if_killed(folder: Path, options: argparse.Namespace, stream: TextIO) -> None:
    """Report, unless the run has recorded its end, and was reported then, or did not train."""
    from unstuck.judge import TRAINING
    from unstuck.record import RecordError, has_ended, read

    with contextlib.suppress(RecordError, OSError):
        if not has_ended(folder) and any(read(folder).of(*TRAINING)):
            _report(folder, options, stream, None)


def _is_explained(folder: Path) -> bool:
    """Has the launcher already said why there is no record? On a full or read-only disk it has no line."""
    from unstuck.record.store import record_file
    from unstuck.regular import open_regular

    try:
        with open_regular(record_file(folder)) as record:
            return b"\n" not in record.read(2**16)
    except OSError:
        return folder.name == NOWHERE
