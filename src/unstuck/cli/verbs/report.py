"""`unstuck report [RUN]`: show the report of an earlier run again."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from unstuck.cli import common
from unstuck.cli.runs import latest_record, record_at, report_on, run_named

HELP = "show the report of an earlier run again"
GROUP = "more"


def main(arguments: Sequence[str]) -> int:
    """Print the report on a record."""
    parser = common.verb_parser("report", "Show the report of an earlier run again, from its record. Nothing is run.")
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a record, its folder, or the name of a run in this directory (default: the latest)",
    )
    common.add_report_options(parser)
    common.add_html_option(parser)
    options = parser.parse_args(arguments)
    common.check_files(options)
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
