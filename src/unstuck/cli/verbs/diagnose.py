"""`unstuck diagnose SCRIPT [ARGS]`: watch a script, test fixes and run experiments until the cause is found."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from unstuck.cli import common, trying
from unstuck.events import RunStatus

if TYPE_CHECKING:
    from unstuck.cli.verbs.run import Split
    from unstuck.findings.investigation import Investigation
    from unstuck.view.document import Document

HELP = "find out why a script does not learn: watch it, try fixes, run experiments"
GROUP = "cause"

DESCRIPTION = f"""Find out why a training script does not learn: watch it for a while, test the fix of each finding
(same script, same seeds, with and without the fix), and run experiments on its loop if that does
not settle it.

{trying.IN_TRIALS}"""


def main(arguments: Sequence[str]) -> int:
    """Investigate, then report."""
    return investigate("diagnose", DESCRIPTION, arguments)


def investigate(verb: str, description: str, arguments: Sequence[str], *, only_proofs: bool = False) -> int:
    """Shared by `diagnose` and `prove`."""
    split, options = trying.parsed(_parser(verb, description), arguments, verb)
    common.check_files(options)
    from unstuck.trials.interrupts import Interrupts

    with Interrupts() as interrupts:
        try:
            done = _investigated(split, options, only_proofs)
        except KeyboardInterrupt:
            raise common.Stop(trying.NOTHING_KNOWN, interrupts.exit_code) from None
        _publish(done, options)
        if interrupts.arrived is not None:
            print("unstuck: interrupted; the report shows the results so far", file=sys.stderr)
            return interrupts.exit_code
    crashed = bool(done.ended_badly) or (done.result.run is not None and done.result.run.status == RunStatus.CRASHED)
    shown = done.is_proven and options.fail_on != "never"
    return common.FOUND if crashed or shown else common.exit_code(done.result.verdict, options.fail_on)


def _investigated(split: Split, options: argparse.Namespace, only_proofs: bool) -> Investigation:
    from unstuck.diagnose.script import NoRun, diagnose

    with trying.Progress(sys.stderr, options.budget, quiet=options.quiet) as progress:
        folder = trying.new_folder(split)
        try:
            return diagnose(
                trying.program(split),
                folder,
                options.budget,
                progress.tell,
                progress.watch,
                learned=progress.learned,
                only_proofs=only_proofs,
            )
        except NoRun as error:
            raise common.Stop(trying.no_run(error, split)) from None


def _parser(verb: str, description: str) -> argparse.ArgumentParser:
    usage = f"unstuck {verb} [options] SCRIPT [ARGS ...]\n       unstuck {verb} [options] -m MODULE [ARGS ...]"
    parser = common.verb_parser(verb, description, usage)
    trying.add_options(parser)
    common.add_html_option(parser)
    common.add_checked_option(parser)
    common.add_fail_on_option(parser)
    return parser


def _publish(done: Investigation, options: argparse.Namespace) -> None:
    from pathlib import Path

    from unstuck.report import investigation, terminal

    shown = _kept(done)
    if options.html:
        from unstuck.view.html import page_of

        common.write_whole(Path(options.html), page_of(shown, terminal.plain(investigation.render(done))))
        print(f"unstuck: the page is {os.path.relpath(options.html)}", file=sys.stderr)
    if options.format == "json":
        text = investigation.document_text(done)
    elif options.output:
        text = terminal.plain(investigation.render(done))
    else:
        terminal.show(investigation.render(done, terminal.columns_of(sys.stdout)), sys.stdout)
        if options.checked:
            from unstuck.report.text import checked_lines

            terminal.show(checked_lines(done.result.verdict), sys.stdout)
        return
    if options.output:
        common.write_whole(Path(options.output), text)
        print(f"unstuck: the report is in {os.path.relpath(options.output)}", file=sys.stderr)
    else:
        common.send(text, sys.stdout)


def _kept(done: Investigation) -> Document:
    """The page of the diagnosis, kept next to its records for `report` and `view`."""
    from unstuck.view.document import document
    from unstuck.view.store import keep

    shown = document(done)
    keep(shown, done.folder)
    return shown
