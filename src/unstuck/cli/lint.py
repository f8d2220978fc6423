"""`unstuck lint PATHS`: find mistakes in scripts without running them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from unstuck.cli import common
from unstuck.judge import Verdict, judge, unite
from unstuck.report.result import Problem, Result
from unstuck.rule import Rule, all_rules
from unstuck.source import Project, SourceError, find_files, read_script
from unstuck.source.project import rare_collection

EPILOG = (
    common.EXIT_CODES
    + """
A file that cannot be parsed is reported and the others are still looked at; the exit code is then
1 if something was found in the others, else 2 (70 if one of our own rules broke down).
A line is left alone when it ends in `# unstuck: ignore[O12]`.
"""
)


def main(arguments: Sequence[str]) -> int:
    """Lint the given paths and print what was found."""
    options = _parser().parse_args(arguments)
    common.check_output(options.output)
    rules = _chosen_rules(options.select, options.ignore)
    try:
        files = find_files(options.paths)
    except SourceError as error:
        raise common.Stop(str(error)) from None
    with rare_collection():
        verdict, problems = _judge_each(files, rules)
    result = Result(command="lint", verdict=verdict, files=len(files) - len(problems), problems=tuple(problems))
    common.publish(result, options, sys.stdout)
    if options.format == "json" or options.output:
        _print_problems(result.errors)
    return common.exit_code(verdict, options.fail_on) or _silent_code(verdict, problems)


def _silent_code(verdict: Verdict, problems: Sequence[Problem]) -> int:
    """Nothing was found; but a rule that broke down, or a file that could not be read, is no clean bill of health."""
    if verdict.failures:
        return common.INTERNAL
    return common.BAD_INPUT if problems else common.CLEAN


def _parser() -> argparse.ArgumentParser:
    parser = common.verb_parser("lint", "Find mistakes in training scripts without running them.", epilog=EPILOG)
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a script, or a folder to search for scripts")
    parser.add_argument("--select", metavar="RULES", help="only these rules: codes or names, with commas between")
    parser.add_argument("--ignore", metavar="RULES", help="all rules but these")
    common.add_report_options(parser)
    return parser


def _chosen_rules(select: str | None, ignore: str | None) -> tuple[Rule, ...]:
    left_out = _rules_in(ignore)
    wanted = all_rules() if select is None else _rules_in(select)
    chosen = tuple(rule for rule in wanted if rule not in left_out)
    if not chosen:
        raise common.Stop("--select and --ignore leave no rule to look for; name at least one, such as --select O12.")
    return chosen


def _rules_in(words: str | None) -> tuple[Rule, ...]:
    return tuple(dict.fromkeys(common.rule_named(word) for word in (words or "").split(",") if word.strip()))


def _judge_each(files: Sequence[Path], rules: Sequence[Rule]) -> tuple[Verdict, list[Problem]]:
    """One script at a time, so that a large folder does not have to fit in memory."""
    verdicts, problems = [], []
    project = Project()
    for path in files:
        try:
            script = read_script(path, project)
        except SourceError as error:
            problems.append(Problem(str(error), error.place))
        else:
            verdicts.append(judge(scripts=(script,), rules=rules))
    return unite(verdicts), problems


def _print_problems(problems: Sequence[Problem]) -> None:
    from unstuck.report.text import problem_sentence

    for problem in problems:
        print(f"unstuck: {problem_sentence(problem.message, problem.place)}", file=sys.stderr)
