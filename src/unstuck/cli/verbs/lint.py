"""`unstuck lint PATHS`: find mistakes in scripts without running them."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence

from unstuck.cli import common
from unstuck.findings.result import Problem, Result
from unstuck.lint.engine import lint, lint_text
from unstuck.lint.settings import Settings, SettingsError, settings_for
from unstuck.lint.workers import available_cores
from unstuck.source import SourceError
from unstuck.source.documents.files import decode

HELP = "find mistakes in scripts without running them"
GROUP = "cause"

EPILOG = (
    common.EXIT_CODES
    + """
A file that cannot be parsed is reported and the others are still linted; the exit code is then 1 if
the others have findings, otherwise 2 (70 if one of our rules failed).
A fix is applied only if the file then parses and no longer has the finding. With --diff the exit code
is 1 if anything would change. --unsafe-fixes includes --fix.
Silence a line you are sure about with `# unstuck: ignore[O12]`.
RULES is a comma-separated list of codes, names or prefixes of codes: O12,clip-misplaced,G.
The nearest pyproject.toml with a [tool.unstuck] table may set select, ignore, per-file-ignores,
severity, paths, exclude and fail-on; its patterns use the syntax of .gitignore.
"""
)
PATH_HELP = "a script, a folder to search, or - for stdin (default: `paths` in the settings, or .)"
STDIN = "-"


def main(arguments: Sequence[str]) -> int:
    """Lint the given paths and print the findings."""
    options = _parser().parse_args(arguments)
    common.check_output(options.output)
    try:
        _check_together(options)
        settings = _settings(options)
        if not gc.isenabled():  # see `unstuck.cli.main`; what is loaded by now stays until the end
            gc.freeze()
            gc.enable()
        paths = options.paths or list(settings.paths) or ["."]
        result = _result(paths, options, settings)
        if options.fix or options.unsafe_fixes or options.diff:
            return _fix(result, paths, options, settings)
        if options.add_ignores:
            return _add_ignores(result, paths, options, settings)
    except (SettingsError, SourceError) as error:
        raise common.Stop(str(error)) from None
    _publish(result, options)
    return _exit_code(result, options.fail_on or settings.fail_on)


def _parser() -> argparse.ArgumentParser:
    parser = common.verb_parser("lint", "Find mistakes in training scripts without running them.", epilog=EPILOG)
    parser.add_argument("paths", nargs="*", metavar="PATH", help=PATH_HELP)
    parser.add_argument("--select", metavar="RULES", help="check only these rules, overriding the settings")
    parser.add_argument("--ignore", metavar="RULES", help="skip these rules")
    common.add_report_options(parser)
    parser.set_defaults(fail_on=None)
    parser.add_argument(
        "--statistics", action="store_true", help="print the number of findings per rule instead of a report"
    )
    parser.add_argument("--add-ignores", action="store_true", help="add an ignore comment to every line with a finding")
    parser.add_argument("--fix", action="store_true", help="apply the fixes that only remove the mistake")
    parser.add_argument("--unsafe-fixes", action="store_true", help="also apply fixes that you should review")
    parser.add_argument("--diff", action="store_true", help="print the fixes as a diff, and change nothing")
    parser.add_argument("--stdin-filename", metavar="FILE", help="the file name of the text from stdin")
    parser.add_argument("--config", metavar="FILE", help="read [tool.unstuck] from this file")
    parser.add_argument("--isolated", action="store_true", help="read no settings from files")
    parser.add_argument("--no-gitignore", action="store_true", help="also lint files that git ignores")
    parser.add_argument("--no-cache", action="store_true", help="do not use the results of earlier runs")
    parser.add_argument(
        "--jobs", type=common.positive_integer, metavar="N", help="processes to use (default: one per core)"
    )
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    return settings_for(
        [options.stdin_filename or "." if path == STDIN else path for path in options.paths],
        config=options.config,
        isolated=options.isolated,
        select=options.select,
        ignore=options.ignore,
    )


def _check_together(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other."""
    if options.config and options.isolated:
        raise SettingsError("--config and --isolated contradict each other; use one of them.")
    if options.stdin_filename and STDIN not in options.paths:
        raise SettingsError("--stdin-filename needs - as the path; add it, or drop the option.")
    if STDIN in options.paths and len(options.paths) > 1:
        raise SettingsError("stdin (-) cannot be combined with other paths; use one or the other.")
    if options.statistics and options.format not in ("text", "json"):
        raise SettingsError("--statistics supports only --format text and --format json.")
    flags = {
        "--add-ignores": options.add_ignores,
        "--diff": options.diff,
        "--unsafe-fixes": options.unsafe_fixes,
        "--fix": options.fix,
    }
    changing = [option for option, is_set in flags.items() if is_set]
    if changing and STDIN in options.paths:
        verb = "show changes to" if options.diff else "rewrite"
        raise SettingsError(f"{changing[0]} cannot {verb} stdin; name a file.")
    if options.add_ignores and len(changing) > 1:
        raise SettingsError(f"{changing[-1]} and --add-ignores contradict each other; use one of them.")
    if options.diff and (options.statistics or options.format != "text"):
        other = "--statistics" if options.statistics else f"--format {options.format}"
        raise SettingsError(f"--diff prints only a diff; drop {other} or --diff.")


def _result(paths: Sequence[str], options: argparse.Namespace, settings: Settings) -> Result:
    if STDIN in paths:
        name = options.stdin_filename or "<stdin>"
        return lint_text(name, decode(sys.stdin.buffer.read(), name), settings)
    return lint(
        paths,
        settings,
        jobs=options.jobs or available_cores(),
        cache=not options.no_cache,
        gitignore=not options.no_gitignore,
    )


def _publish(result: Result, options: argparse.Namespace) -> None:
    if options.statistics:
        from unstuck.lint import statistics

        text = statistics.render(result, options.format)
        common.write_whole(options.output, text) if options.output else sys.stdout.write(text)
    else:
        common.publish(result, options, sys.stdout)
    if options.statistics or options.format != "text" or options.output:
        _print_problems(result.errors)


def _fix(result: Result, paths: Sequence[str], options: argparse.Namespace, settings: Settings) -> int:
    """Apply or show the fixes, and report what remains."""
    from unstuck.cli import lint_fixes

    changes = lint_fixes.apply(result, options, settings)
    stream = sys.stderr if options.diff or options.format != "text" or options.output else sys.stdout
    if options.diff:
        code = lint_fixes.print_diff(changes, options.output)
    else:
        result = _result(paths, options, settings) if changes.files else result
        # On a terminal "Nothing found" would contradict the summary below, which says what was fixed.
        is_all_fixed = changes.files and not (result.verdict.diagnoses or result.errors)
        if not is_all_fixed or stream is sys.stderr or options.statistics:
            _publish(result, options)
        code = _exit_code(result, options.fail_on or settings.fail_on)
    _print_problems(changes.problems)
    print(lint_fixes.summary(changes, result, options), file=stream)
    return code or (common.BAD_INPUT if changes.problems else common.CLEAN)


def _add_ignores(result: Result, paths: Sequence[str], options: argparse.Namespace, settings: Settings) -> int:
    from unstuck.lint.ignoring import add_ignores

    added = add_ignores(result.verdict.diagnoses)
    if added.comments:
        result = _result(paths, options, settings)
    files = f"{added.files} file{'s' * (added.files != 1)}"
    print(f"Added {added.comments} ignore comment{'s' * (added.comments != 1)} to {files}.")
    problems = (*result.errors, *added.problems)
    _print_problems(problems)
    return _exit_code(result, options.fail_on or settings.fail_on) or (common.BAD_INPUT if problems else common.CLEAN)


def _exit_code(result: Result, fail_on: str) -> int:
    """Without findings, a rule that failed or a file that could not be read is still an error."""
    unread = common.BAD_INPUT if result.problems else common.CLEAN
    return common.exit_code(result.verdict, fail_on) or (common.INTERNAL if result.verdict.failures else unread)


def _print_problems(problems: Sequence[Problem]) -> None:
    from unstuck.report.terminal import INVISIBLE
    from unstuck.report.text import problem_sentence

    for problem in problems:
        sentence = problem_sentence(problem.message, problem.place).replace("\n", " ")
        print(f"unstuck: {sentence.translate(INVISIBLE)}", file=sys.stderr)
