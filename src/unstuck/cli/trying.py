"""Shared by the verbs that run trials of a script: options, the program, and progress."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from unstuck.cli import common
from unstuck.cli.runs import folder_for
from unstuck.cli.scripts import require_script
from unstuck.cli.verbs.run import Split, mention_misplaced, split_arguments
from unstuck.record.in_use import hold

if TYPE_CHECKING:
    from unstuck.experiments import ExperimentKind
    from unstuck.findings.results import Experiment
    from unstuck.trials.runner import Program, Variant

WITH_VALUE = ("--format", "--output", "--fail-on", "--budget", "--html")
IN_TRIALS = """The script runs unchanged, for a few hundred steps each time, and cannot touch your files: what it
writes is discarded, and the report says how. Everything after SCRIPT is passed to the script."""
EPILOG = """exit codes:
  0   the experiment ran and found no error
  1   the experiment found an error
  2   wrong usage, or a script that cannot be run
  3   an optional dependency is missing
"""
NOTHING_KNOWN = "interrupted before the first training step; there is nothing to report."
EVERY = 0.5
"""Seconds between two updates of the progress line."""


def add_options(parser: argparse.ArgumentParser, budget: str = "5m") -> None:
    """`--budget`, `--format`, `--output` and `--quiet`."""
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=_seconds,
        default=_seconds(budget),
        help=f"time limit, such as 90s or 5m (default: {budget})",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for people (default) or JSON for programs"
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="short for --format json")
    parser.add_argument("--output", metavar="FILE", help="write the report to FILE, completely or not at all")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _seconds(text: str) -> float:
    from unstuck.diagnose.script import seconds_of

    try:
        return seconds_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0; write it as 90s, 5m or 1h") from None


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str], verb: str) -> tuple[Split, argparse.Namespace]:
    """Our options, and the script with its arguments; refuses what cannot run."""
    split = split_arguments(arguments, WITH_VALUE)
    options = parser.parse_args(split.ours)
    if split.target is None:
        parser.error(f"name a script, such as: unstuck {verb} train.py")
    if not split.as_module:
        require_script(split.target)
    common.require_torch(verb)
    if not hasattr(os, "fork"):
        raise common.Stop(
            f"{verb} needs to fork a process for every trial, which this system does not support; use: unstuck run"
        )
    if not options.quiet:
        common.mention_untried_torch()
        mention_misplaced(parser, split)
    return split, options


def _misplaced(split: Split) -> str:
    """A sentence if one of our options went to the script, which may be why it does not run."""
    ours = (*WITH_VALUE, "--json", "--quiet")
    found = next((word for word in split.theirs if word.partition("=")[0] in ours), "")
    name = found.partition("=")[0]
    return (
        f"{name} comes after {split.target}, so it went to your script. Put unstuck's options before the script."
        if found
        else ""
    )


def no_run(error: Exception, split: Split) -> str:
    """The message for a script that did not train."""
    return "\n".join(filter(None, (str(error), _misplaced(split))))


def program(split: Split) -> Program:
    """The program to run trials of."""
    from unstuck.trials.runner import Program

    assert split.target is not None
    return Program(split.target, tuple(split.theirs), split.as_module)


def new_folder(split: Split) -> Path:
    """A new folder for the records of the trials."""
    assert split.target is not None
    folder = folder_for(split.target)
    hold(folder)
    return folder


def experiment(kind: ExperimentKind, arguments: Sequence[str]) -> int:
    """Run one experiment on a script and report the result."""
    verb = kind.name
    usage = f"unstuck {verb} [options] SCRIPT [ARGS ...]\n       unstuck {verb} [options] -m MODULE [ARGS ...]"
    parser = common.verb_parser(verb, f"{kind.description}\n\n{IN_TRIALS}", usage, EPILOG)
    add_options(parser, "2m")
    if kind.has_page:
        common.add_html_option(parser)
    split, options = parsed(parser, arguments, verb)
    common.check_output(options.output)
    page = Path(options.html) if kind.has_page and options.html else None
    common.check_output(str(page) if page else None)
    from unstuck.trials.interrupts import Interrupts

    with Interrupts() as interrupts:
        try:
            done = _made(kind, split, options)
        except KeyboardInterrupt as end:
            raise common.Stop(_interrupted(end, verb), interrupts.exit_code) from None
        code = publish(done, options)
        if page is not None:
            _write_page(done, page, split)
        return code if interrupts.arrived is None else interrupts.exit_code


def _write_page(done: Experiment, page: Path, split: Split) -> None:
    from unstuck.experiments import findings_in
    from unstuck.findings import merge
    from unstuck.report import experiment as report, terminal
    from unstuck.view.data_page import data_document
    from unstuck.view.html import page_of

    diagnoses = merge(findings_in(done))
    shown = data_document(done, diagnoses, split.target or "", split.theirs)
    common.write_whole(page, page_of(shown, terminal.plain(report.render(done, diagnoses))))
    print(f"unstuck: the page is {os.path.relpath(page)}", file=sys.stderr)


def _made(kind: ExperimentKind, split: Split, options: argparse.Namespace) -> Experiment:
    from unstuck.diagnose.script import NoRun, has_trained, prepare
    from unstuck.trials.context import Context
    from unstuck.trials.interrupts import only_note_interrupts
    from unstuck.trials.runner import Interrupted, Runner

    with (
        Progress(sys.stderr, options.budget, quiet=options.quiet) as progress,
        Runner(program(split), new_folder(split)) as runner,
    ):
        context = Context(runner, options.budget, progress.tell)
        context.watch = progress.watch
        try:
            if kind.takes_several_runs and has_trained(first := context.learn_pace()):
                prepare(context, runner, first)
            done = kind.answer(context) if all(has_trained(run) for run in context.outcomes) else None
            only_note_interrupts()
        except KeyboardInterrupt as end:
            cut_short = end.outcomes if isinstance(end, Interrupted) else ()
            raise Interrupted([*context.outcomes, *cut_short]) from None
    if done is None or not any(has_trained(run) for run in context.outcomes):
        raise common.Stop(no_run(NoRun(program(split), context.outcomes[0]), split))
    return done


def _interrupted(end: KeyboardInterrupt, verb: str) -> str:
    """The message after Ctrl-C: how many steps the runs had taken."""
    from unstuck.trials.runner import Interrupted

    curves = [outcome.curve for outcome in end.outcomes] if isinstance(end, Interrupted) else []
    taken = sum(len(curve.losses) for curve in curves)
    if not taken:
        return NOTHING_KNOWN
    return f"interrupted after {taken} steps, before {verb} had an answer."


def publish(done: Experiment, options: argparse.Namespace) -> int:
    """Print or write the report of an experiment; the exit code."""
    from unstuck.experiments import findings_in
    from unstuck.findings import Severity, merge
    from unstuck.report import experiment as report, terminal

    diagnoses = merge(findings_in(done))
    if options.format == "json":
        text = report.document_text(done, diagnoses)
    else:
        lines = report.render(done, diagnoses, terminal.columns_of(sys.stdout))
        if not options.output:
            terminal.show(lines, sys.stdout)
        text = terminal.plain(lines)
    if options.output:
        common.write_whole(Path(options.output), text)
    elif options.format == "json":
        common.send(text, sys.stdout)
    return common.FOUND if any(d.severity is Severity.ERROR for d in diagnoses) else common.CLEAN


class Progress:
    """Progress with the time used: one line that is overwritten on a terminal, otherwise one line per task."""

    def __init__(self, stream: TextIO, seconds: float, *, quiet: bool = False) -> None:
        self._stream = stream
        self._seconds = seconds
        self._quiet = quiet
        self._live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._text = ""
        self._began = time.monotonic()
        self._last = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and not self._quiet:
            self._stream.write("\r\x1b[K")
        self._stream.flush()

    def tell(self, text: str) -> None:
        """A new task has started."""
        self._text = text
        if self._quiet:
            return
        if self._live:
            self._show("")
        else:
            self._stream.write(f"unstuck: {self._clock()} {text}\n")
            self._stream.flush()

    def learned(self, text: str) -> None:
        """A task has a result, which stays on the screen."""
        from unstuck.report.terminal import columns_of, spell_for

        if self._quiet:
            return
        room = columns_of(self._stream) - 11 if self._live else 200
        short = text if len(text) <= room else text[: room - 1] + "…"
        self._stream.write(spell_for(("\r\x1b[K" if self._live else "") + f"unstuck: → {short}\n", self._stream))
        self._stream.flush()

    def watch(self, variant: Variant, folder: Path) -> None:
        """Show how far a running trial is."""
        now = time.monotonic()
        if self._quiet or not self._live or now - self._last < EVERY:
            return
        self._last = now
        self._show(_latest(folder))

    def _show(self, detail: str) -> None:
        from unstuck.report.terminal import columns_of, spell_for

        line = f"{self._clock()} {self._text}" + (f": {detail}" if detail else "")
        self._stream.write("\r\x1b[K" + spell_for(line[: columns_of(self._stream) - 1], self._stream))
        self._stream.flush()

    def _clock(self) -> str:
        """`[0:12 of 5:00]`"""
        used, budget = int(time.monotonic() - self._began), int(self._seconds)
        return f"[{used // 60}:{used % 60:02} of {budget // 60}:{budget % 60:02}]"


def _latest(folder: Path) -> str:
    """The last recorded step and loss."""
    import re

    from unstuck.record.store import record_file

    try:
        with record_file(folder).open("rb") as record:
            record.seek(max(0, os.fstat(record.fileno()).st_size - 20_000))
            tail = record.read().decode(errors="replace")
    except OSError:
        return ""
    steps = re.findall(r'"step":(\d+)', tail)
    losses = re.findall(r'"loss":(-?[\d.e+-]+)', tail)
    words = f"step {steps[-1]}" if steps else ""
    return words + (f", loss {float(losses[-1]):.4g}" if losses else "")
