"""`unstuck export [RUN]`: the gauges of a run for other programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from unstuck import exports
from unstuck.cli import common
from unstuck.cli.runs import latest_record, record_at, run_named
from unstuck.exports import Kind

HELP = "write the gauges of a run as CSV, Parquet or for TensorBoard"
GROUP = "more"

DESCRIPTION = """Write the gauges of a run as a table with a row for each recorded step, gauge and layer,
or as an event file that TensorBoard shows, with histograms and findings.

The gauges are those of `unstuck.watch().series(...)`: loss, lr, grad_norm, update_ratio, dead, ..."""
EPILOG = """exit codes:
  0   written
  2   wrong usage, or a run that cannot be read
  3   an optional dependency is missing
"""


def main(arguments: Sequence[str]) -> int:
    """Write the table to stdout, into a file or into a folder."""
    parser = common.verb_parser("export", DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a record, its folder, or the name of a run in this directory (default: the latest)",
    )
    parser.add_argument(
        "--format", choices=exports.names(), default="csv", help="csv (default), parquet or tensorboard"
    )
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="write to this file, completely or not at all; with tensorboard, into this folder (default for csv: "
        "stdout)",
    )
    options = parser.parse_args(arguments)
    module = exports.module_of(options.format)
    if why := exports.missing(options.format):
        raise common.Stop(f"{why}.", common.MISSING_DEPENDENCY)
    _check(module.KIND, options.format, options.output)
    if options.run and options.run != "latest":
        path = run_named(options.run)
        record = record_at(path)
    else:
        path, record = latest_record()
    if module.KIND is Kind.FOLDER:
        try:
            module.write(record, path.absolute(), options.output)
        except OSError as error:
            raise common.Stop(f"cannot write {options.output}: {error.strerror or error}.") from None
    elif options.output:
        common.write_whole(options.output, module.content(record, path.absolute()))
    else:
        common.send(module.content(record, path.absolute()), sys.stdout)
    return common.CLEAN


def _check(kind: Kind, name: str, output: str | None) -> None:
    if kind is not Kind.FOLDER:
        common.check_output(output)
        if kind is Kind.FILE and not output:
            raise common.Stop(f"--format {name} is not text; name a file with --output.")
    elif not output:
        raise common.Stop(f"--format {name} writes into a folder; name it with --output.")
    elif Path(output).exists() and not Path(output).is_dir():
        raise common.Stop(f"cannot write {output}: it is a file; name a folder.")
