"""Shared by the verbs: options, exit codes, and where a report goes."""

from __future__ import annotations

import os
import sys

from unstuck._version import __version__

TYPE_CHECKING = False  # `typing`, `argparse` and `pathlib` are loaded by the commands that need them
if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import TextIO

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
  2   wrong usage, or unreadable input
  3   an optional dependency is missing
"""
STOPPED_CODE = "  4   --stop-on ended the script early\n"


class Stop(Exception):
    """Ends the command with one sentence on stderr."""

    def __init__(self, sentence: str, code: int = BAD_INPUT) -> None:
        super().__init__(sentence)
        self.code = code


def apology(error: Exception) -> str:
    """The message for an error in unstuck itself."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return (
        f"unstuck: this is a bug in unstuck {__version__} ({what}); please report it with the traceback that the same "
        "command prints with UNSTUCK_RAISE=1 set."
    )


def require_torch(verb: str) -> None:
    """End the command if torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise Stop(f"{verb} needs PyTorch, which is not installed: pip install torch", MISSING_DEPENDENCY)


def mention_untried_torch() -> None:
    """One line on stderr if unstuck was not tested with the installed torch."""
    from unstuck import torches

    sentence = torches.untried()
    if sentence:
        print(f"unstuck: {sentence}", file=sys.stderr)


def verb_parser(
    verb: str, description: str, usage: str | None = None, epilog: str = EXIT_CODES
) -> argparse.ArgumentParser:
    """A parser for one verb."""
    import argparse

    return argparse.ArgumentParser(
        prog=f"unstuck {verb}",
        usage=usage,
        description=description,
        epilog=epilog,
        # A fixed width: to measure the terminal, argparse would load half of the standard library.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100),
        allow_abbrev=False,
    )


FORMAT_HELP = """text for people (default), concise for editors, json or json-lines for programs, sarif for code
scanning, github for annotations in GitHub Actions, junit for GitLab and others"""


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """`--format`, for output that is not a report."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for people (default) or JSON for programs"
    )


def format_names() -> list[str]:
    """The formats of a report, in the order in which the help mentions them."""
    from unstuck.report.formats import names

    return sorted(names(), key=lambda name: (name not in FORMAT_HELP, FORMAT_HELP.find(name)))


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """`--format`, `--output`, `--checked` and `--fail-on`, for every verb that reports findings."""
    parser.add_argument("--format", choices=format_names(), default="text", help=FORMAT_HELP)
    parser.add_argument("--output", metavar="FILE", help="write the report to FILE, completely or not at all")
    add_checked_option(parser)
    add_fail_on_option(parser)


def add_checked_option(parser: argparse.ArgumentParser) -> None:
    """`--checked`, for every verb whose report says how many rules were checked."""
    parser.add_argument(
        "--checked", action="store_true", help="list the rules that were checked, and why others were not"
    )


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """`--html`, for every verb that reports on a run."""
    parser.add_argument(
        "--html", metavar="FILE", help="also write the report as a web page, with the data and the curves"
    )


def add_fail_on_option(parser: argparse.ArgumentParser) -> None:
    """`--fail-on`, for every verb that ends with a verdict."""
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "advice", "never"),
        default="error",
        help="exit with 1 for findings of this severity or worse (default: error)",
    )


def positive_integer(word: str) -> int:
    """The type of an option, for argparse."""
    from argparse import ArgumentTypeError

    if not word.isascii() or not word.isdigit() or int(word) < 1:
        raise ArgumentTypeError(f"{word!r} is not a positive integer")
    return int(word)


SOURCES = (".py", ".pyi", ".ipynb", ".toml", ".yaml", ".yml", ".sh")
"""What no report is written over."""


def check_output(output: str | None) -> None:
    """Refuse a file that cannot be written, before the work starts."""
    if output is None:
        return
    from pathlib import Path

    path = Path(output)
    if path.is_dir():
        raise Stop(f"cannot write {output}: it is a directory; name a file.")
    if not path.absolute().parent.is_dir():
        raise Stop(f"cannot write {output}: its directory does not exist.")
    if path.suffix in SOURCES and path.exists():
        raise Stop(f"cannot write {output}: it is a file of your own, not a report; name another file.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise Stop(f"cannot write {output}: permission denied.")


def check_page(html: str | None) -> None:
    """The same for `--html FILE`; somebody may take that for a switch, and name their script after it."""
    from pathlib import Path

    check_output(html)
    path = Path(html) if html else None
    if path is not None and path.is_file() and os.access(path, os.R_OK):
        with path.open("rb") as file:
            if file.read(64).strip()[:1] not in (b"", b"<"):
                raise Stop(f"cannot write {html}: it exists and is not a web page; name another file.")


def check_files(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written, or are the same file, before the work starts."""
    check_output(options.output)
    check_page(options.html)
    if options.output and options.html and os.path.realpath(options.output) == os.path.realpath(options.html):
        raise Stop(f"--output and --html both name {options.html}; name two files.")


def publish(result: Result, options: argparse.Namespace, stream: TextIO | None) -> None:
    """Send the report to the file of `--output`, or else to the stream."""
    if options.output or options.format != "text":
        from unstuck.report.formats import render

        if options.output:
            write_whole(options.output, render(result, options.format))
        elif stream:
            send(render(result, options.format), stream)
    elif stream:
        from unstuck.report import terminal, text

        width = terminal.columns_of(stream)
        terminal.show(text.render(result, width), stream)
        if options.checked:
            terminal.show(text.checked_lines(result.verdict, min(width, text.PROSE)), stream)


def send(text: str, stream: TextIO) -> None:
    """Write output for programs: UTF-8, even if the stream's own encoding lacks a character."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.flush()
        stream.buffer.write(text.encode(errors="replace"))


def write_whole(path: str | Path, text: str | bytes) -> None:
    """Write a file completely or not at all."""
    from pathlib import Path

    target = Path(os.path.realpath(path))
    content = text.encode(errors="replace") if isinstance(text, str) else text  # a name may hold half a character
    try:
        if target.exists() and not target.is_file():
            # A pipe or a device: nothing to replace, and replacing it would be wrong.
            target.write_bytes(content)
            return
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            draft.write_bytes(content)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise Stop(f"cannot write {path}: {error.strerror or error}.") from None


def exit_code(verdict: Verdict, fail_on: str) -> int:
    """1 when something was found at or above `--fail-on`, or a run diverged or did not beat a guess."""
    from unstuck.findings import Severity

    found = fail_on != "never" and (verdict.in_trouble or verdict.reaches(Severity(fail_on)))
    return FOUND if found else CLEAN


def rule_named(word: str) -> Rule:
    """The rule with this code or name; otherwise an error that suggests one."""
    from unstuck.rule import find_rule, nearest

    rule = find_rule(word)
    if rule is None:
        close = nearest(word)
        name, _, variant = word.partition("/")
        if close and "/" not in close and (parent := find_rule(name)):
            known = f"its variants are {', '.join(parent.variants)}" if parent.variants else "it has none"
            raise Stop(f"{parent.code} has no variant {variant!r}; {known}.")
        hint = f"did you mean {close}?" if close else "`unstuck rules` lists them."
        raise Stop(f"there is no rule {word!r}; {hint}")
    return rule


def print_to_stdout(text: str) -> None:
    """Print text, replacing characters that stdout cannot encode."""
    from unstuck.report.terminal import spell_for

    sys.stdout.write(spell_for(text, sys.stdout))
