"""What the verbs share: options, exit codes, and where a report goes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from unstuck._version import __version__

if TYPE_CHECKING:
    from unstuck.findings.result import Result
    from unstuck.findings.verdict import Verdict
    from unstuck.rule import Rule

CLEAN = 0
FOUND = 1
BAD_INPUT = 2
MISSING_DEPENDENCY = 3
INTERNAL = 70
INTERRUPTED = 130
EXIT_CODES = """exit codes:
  0   nothing found at or above --fail-on
  1   something found at or above --fail-on
  2   wrong usage, or input that cannot be read
  3   an optional dependency is missing
"""
STOPPED_CODE = "  4   --stop-on ended the script early\n"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width: to measure the terminal, argparse would load half of the standard library."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


class Stop(Exception):
    """Ends the command with one sentence on stderr."""

    def __init__(self, sentence: str, code: int = BAD_INPUT) -> None:
        super().__init__(sentence)
        self.code = code


def apology(error: Exception) -> str:
    """What to say when the fault is ours."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return (
        f"unstuck: this is a bug in unstuck {__version__} ({what}); please report it together with what "
        "UNSTUCK_RAISE=1 prints when set before the same command."
    )


def mention_untried_torch() -> None:
    """One line on stderr if nobody has tried us with the torch that is installed."""
    from unstuck import torches

    sentence = torches.untried()
    if sentence:
        print(f"unstuck: {sentence}", file=sys.stderr)


def verb_parser(
    verb: str, description: str, usage: str | None = None, epilog: str = EXIT_CODES
) -> argparse.ArgumentParser:
    """A parser for one verb."""
    return argparse.ArgumentParser(
        prog=f"unstuck {verb}",
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )


FORMAT_HELP = """text to read, concise for editors, json or json-lines for programs, sarif for code scanning,
github for annotations in GitHub Actions, junit for GitLab and others"""


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """`--format`, for what is no report."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="text to read, JSON for programs")


def format_names() -> list[str]:
    """The formats of a report, in the order in which the help mentions them."""
    from unstuck.report.formats import names

    return sorted(names(), key=lambda name: (name not in FORMAT_HELP, FORMAT_HELP.find(name)))


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """`--format`, `--output` and `--fail-on`, for every verb that reports findings."""
    parser.add_argument("--format", choices=format_names(), default="text", help=FORMAT_HELP)
    parser.add_argument("--output", metavar="FILE", help="write the report to FILE, whole or not at all")
    add_fail_on_option(parser)


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """`--html`, for every verb that looks at a run."""
    parser.add_argument("--html", metavar="FILE", help="write the report as a page too, with the data and the curves")


def add_fail_on_option(parser: argparse.ArgumentParser) -> None:
    """`--fail-on`, for every verb that ends with a verdict."""
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "advice", "never"),
        default="error",
        help="the least severity that makes the exit code 1 (default: error)",
    )


def check_output(output: str | None) -> None:
    """Refuse a file that cannot be written before the work is done, not after."""
    if output is None:
        return
    path = Path(output)
    if path.is_dir():
        raise Stop(f"cannot write {output}: it is a directory; name a file.")
    if not path.absolute().parent.is_dir():
        raise Stop(f"cannot write {output}: its directory does not exist.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise Stop(f"cannot write {output}: permission denied.")


def check_files(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written, or are one and the same, before the work is done."""
    for file in (options.output, options.html):
        check_output(file)
    if options.output and options.html and os.path.realpath(options.output) == os.path.realpath(options.html):
        raise Stop(f"--output and --html both name {options.html}; name two files.")


def publish(result: Result, options: argparse.Namespace, stream: TextIO | None) -> None:
    """Send the report to the file of `--output`, or else to the stream."""
    if options.output:
        write_whole(Path(options.output), _written(result, options.format))
    elif stream and options.format != "text":
        send(_written(result, options.format), stream)
    elif stream:
        from unstuck.report import terminal, text

        terminal.show(text.render(result, terminal.columns_of(stream)), stream)


def _written(result: Result, wanted: str) -> str:
    from unstuck.report.formats import render

    return render(result, wanted)


def send(text: str, stream: TextIO) -> None:
    """Write what a program reads, which is UTF-8 even where the stream's own encoding lacks a character."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.flush()
        stream.buffer.write(text.encode())


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            # A pipe or a device: nothing to replace, and replacing it would be wrong.
            target.write_text(text, encoding="utf-8")
            return
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Stop(f"cannot write {path}: {error.strerror or error}.") from None


def exit_code(verdict: Verdict, fail_on: str) -> int:
    """1 when something was found at or above `--fail-on`."""
    from unstuck.findings import Severity

    return FOUND if fail_on != "never" and verdict.reaches(Severity(fail_on)) else CLEAN


def rule_named(word: str) -> Rule:
    """The rule of this code or name, or a sentence that suggests one."""
    from unstuck.rule import find_rule, nearest

    rule = find_rule(word)
    if rule is None:
        close = nearest(word)
        hint = f"did you mean {close}?" if close else "`unstuck rules` lists them."
        raise Stop(f"there is no rule {word!r}; {hint}")
    return rule


def print_to_stdout(text: str) -> None:
    """Text in whatever characters stdout has."""
    from unstuck.report.terminal import spell_for

    sys.stdout.write(spell_for(text, sys.stdout))
