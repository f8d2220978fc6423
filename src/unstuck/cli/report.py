"""`unstuck report [RUN]`: judge the record of an earlier run again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from unstuck.cli import common
from unstuck.cli.runs import latest_run, report_on


def main(arguments: Sequence[str]) -> int:
    """Print the report on a record."""
    parser = common.verb_parser("report", "Judge the record of an earlier run again. Nothing is run.")
    parser.add_argument("run", nargs="?", metavar="RUN", help="a record or its folder (default: the latest run here)")
    common.add_report_options(parser)
    common.add_html_option(parser)
    options = parser.parse_args(arguments)
    for file in (options.output, options.html):
        common.check_output(file)
    path = Path(options.run) if options.run else latest_run()
    return report_on(path, "report", options, sys.stdout)
