"""`unstuck doctor`: check on this machine that watching is safe."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unstuck._version import __version__
from unstuck.cli import common

if TYPE_CHECKING:
    from unstuck.doctor.checks import Check

HELP = "check on this machine that watching is safe"
GROUP = "more"

DESCRIPTION = """Check on this machine that watching is safe: a watched training gives the same results to the last
bit, nothing is left behind in torch, and errors of unstuck do not reach the program. Also measures
what watching costs."""
EPILOG = """exit codes:
  0   all checks passed
  1   a check failed
  2   wrong usage
  3   torch is not installed
"""


def main(arguments: Sequence[str]) -> int:
    """Run the checks and print the result of each."""
    parser = common.verb_parser("doctor", DESCRIPTION, epilog=EPILOG)
    common.add_format_option(parser)
    options = parser.parse_args(arguments)
    common.require_torch("doctor")
    from unstuck.doctor.checks import checks
    from unstuck.doctor.machine import machine

    here, done = machine(), []
    if options.format == "text":
        versions = f"unstuck {__version__}, python {here['python']}, torch {here['torch']}"
        common.print_to_stdout(f"{versions}, {platform.system()}, {here['cuda']}\n\n")
    for check in checks():
        done.append(check)
        if options.format == "text":
            common.print_to_stdout(_line(check))
            sys.stdout.flush()
    common.print_to_stdout(_json(here, done) if options.format == "json" else _last_line(done))
    return common.CLEAN if all(check.ok for check in done) else common.FOUND


def _line(check: Check) -> str:
    import textwrap

    start = f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<30}"
    words = textwrap.wrap(check.detail, 80 - len(start) - 2) or [""]
    rest = "".join(f"\n{'':<{len(start)}}  {line}" for line in words[1:])
    return f"{start}  {words[0]}{rest}\n"


def _last_line(done: Sequence[Check]) -> str:
    broken = sum(not check.ok for check in done)
    if not broken:
        return f"\nAll {len(done)} checks passed on this machine.\n"
    return f"\n{broken} of {len(done)} checks failed on this machine; please report this output.\n"


def _json(here: dict[str, str], done: Sequence[Check]) -> str:
    from unstuck.report.json import encode

    document: dict[str, Any] = {
        "version": 1,
        "tool": {"name": "unstuck", "version": __version__},
        "ok": all(check.ok for check in done),
        "machine": here,
        "checks": [check._asdict() for check in done],
    }
    return encode(document)
