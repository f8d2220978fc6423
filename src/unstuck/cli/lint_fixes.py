"""`unstuck lint --fix`, `--unsafe-fixes` and `--diff`: changing files, or showing what would change."""

from __future__ import annotations

import argparse
import sys

import msgspec

from unstuck.cli import common
from unstuck.findings.result import Problem, Result
from unstuck.lint.fixes import ALL, SAFE, Fixed, diff, fix_all, write
from unstuck.lint.settings import Settings
from unstuck.report.text import count
from unstuck.source import SourceError


class Changes(msgspec.Struct):
    """What was changed, or would be, and what prevented a change."""

    files: list[Fixed]
    problems: list[Problem]

    @property
    def fixed(self) -> int:
        """How many findings are gone."""
        return sum(file.fixed for file in self.files)


def apply(result: Result, options: argparse.Namespace, settings: Settings) -> Changes:
    """Apply the fixes of a result, and write the files unless `--diff` is set."""
    fixed, problems = fix_all(result, settings, ALL if options.unsafe_fixes else SAFE)
    changes = Changes([], problems)
    for file in fixed:
        if file.is_changed:
            try:
                if not options.diff:
                    write(file)
                changes.files.append(file)
            except SourceError as error:
                problems.append(Problem(str(error)))
    why = "the file would not parse, or would still have this or another finding"
    problems += [
        Problem(
            f"{finding.place or file.path}: the fix of {finding.code} was skipped, because {why}; change it by hand."
        )
        for file in fixed
        for finding in file.refused
    ]
    return changes


def print_diff(changes: Changes, output: str | None) -> int:
    """Print what would change, or write it to a file; exit code 1 if anything would."""
    text = "".join(diff(file) for file in changes.files)
    common.write_whole(output, text) if output else common.send(text, sys.stdout)
    return common.FOUND if changes.files else common.BAD_INPUT if changes.problems else common.CLEAN


def summary(changes: Changes, result: Result, options: argparse.Namespace) -> str:
    """What was fixed, what remains, and what --unsafe-fixes would add."""
    if options.diff:
        return f"Would fix {count(changes.fixed, 'finding')}." if changes.files else "Would fix nothing."
    left = len(result.verdict.diagnoses)
    remain = f"{left or 'none'} remain{'s' * (left == 1)}"
    done = f"Fixed {count(changes.fixed, 'finding')}" if changes.files else "Fixed nothing"
    fixes = [diagnosis.lead.fix for diagnosis in result.verdict.diagnoses if diagnosis.lead.fix.edits]
    more = 0 if options.unsafe_fixes else sum(fix.safety == "unsafe" for fix in fixes)
    return f"{done}; {remain}." + (f" --unsafe-fixes fixes {more} more; review the change first." if more else "")
