"""`unstuck report [RUN]`: show the report of an earlier run again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unstuck.cli import common
from unstuck.cli.runs import latest_record, record_at, report_on, run_named

if TYPE_CHECKING:
    import argparse

    from unstuck.logged import Log

HELP = "show the report of an earlier run again, or a report on a log of another tool"
GROUP = "more"


DESCRIPTION = """Show the report of an earlier run again, from its record. Nothing is run.

Of a run that was not watched, show what its log holds: give a folder with event files of
TensorBoard, the metrics.csv of Lightning's CSVLogger, or a trainer_state.json of transformers."""


def main(arguments: Sequence[str]) -> int:
    """Print the report on a record."""
    parser = common.verb_parser("report", DESCRIPTION)
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a record, its folder, the name of a run in this directory (default: the latest), or a log",
    )
    common.add_report_options(parser)
    common.add_html_option(parser)
    options = parser.parse_args(arguments)
    common.check_files(options)
    log = _log_at(options.run) if options.run and options.run != "latest" else None
    if log is not None:
        return _report_log(log, options)
    gc.disable()  # it would scan a million live events again and again
    if options.run and options.run != "latest":
        path = run_named(options.run)
        record = record_at(path)
    else:
        path, record = latest_record()
    code = report_on(record, path, "report", options, sys.stdout)
    if options.html:
        print(f"unstuck: the page is {options.html}", file=sys.stderr)
    return code


def _log_at(word: str) -> Log | None:
    """What somebody else logged, if that lies there."""
    from unstuck.logged import LogError
    from unstuck.logged.formats import log_at

    path = run_named(word)
    try:
        return log_at(path) if path.exists() else None
    except LogError as error:
        raise common.Stop(str(error)) from None


def _report_log(log: Log, options: argparse.Namespace) -> int:
    """The post-mortem of a run that was not watched."""
    from unstuck.logged import LogError
    from unstuck.logged.report import result_of

    try:
        result, record = result_of(log)
    except LogError as error:
        raise common.Stop(str(error)) from None
    common.publish(result, options, sys.stdout)
    if options.html:
        from unstuck.findings.investigation import Investigation
        from unstuck.report import terminal, text
        from unstuck.view.document import document
        from unstuck.view.html import page_of

        shown = document(Investigation(result=result, folder=Path(log.path)), record, {})
        common.write_whole(options.html, page_of(shown, terminal.plain(text.render(result))))
        print(f"unstuck: the page is {options.html}", file=sys.stderr)
    return common.exit_code(result.verdict, options.fail_on)
