"""`unstuck export [RUN]`: the gauges of a run as a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from unstuck.cli import common
from unstuck.cli.runs import latest_record, record_at, run_named

HELP = "write the gauges of a run as a table"
GROUP = "more"

DESCRIPTION = """Write the gauges of a run as CSV: a row for each recorded step, gauge and layer.

The gauges are those of `unstuck.watch().series(...)`: loss, lr, grad_norm, update_ratio, dead, ..."""
EPILOG = """exit codes:
  0   written
  2   wrong usage, or a run that cannot be read
"""


def main(arguments: Sequence[str]) -> int:
    """Write the table to stdout or into a file."""
    parser = common.verb_parser("export", DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a record, its folder, or the name of a run in this directory (default: the latest)",
    )
    parser.add_argument("--format", choices=("csv",), default="csv", help="csv (default)")
    parser.add_argument("--output", metavar="FILE", help="write the table to FILE, completely or not at all")
    options = parser.parse_args(arguments)
    common.check_output(options.output)
    record = record_at(run_named(options.run)) if options.run and options.run != "latest" else latest_record()[1]
    from unstuck.watch.series import rows

    table = sorted(rows(record), key=lambda row: row.step)
    if options.output:
        common.write_whole(options.output, "".join(_lines(table)))
    else:
        common.send("".join(_lines(table)), sys.stdout)
    return common.CLEAN


def _lines(table: Sequence[tuple[object, ...]]) -> Iterator[str]:
    yield "step,gauge,layer,value,optimizer\n"
    for row in table:
        yield ",".join(_cell(value) for value in row) + "\n"


def _cell(value: object) -> str:
    """A name of a record that a spreadsheet would take for a formula becomes text."""
    if not isinstance(value, str):
        return str(value)
    text = f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    quoted = text.replace('"', '""')
    return f'"{quoted}"' if any(letter in text for letter in ',"\n\r') else text
