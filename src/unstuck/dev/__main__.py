"""`python -m unstuck.dev`: write a rule pair, refresh tables, compare goldens, try other torches, show the demo."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import unstuck
from unstuck.dev import compat, demo, golden, new_rule, tables
from unstuck.dev.common import Refusal


def main() -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args()
    root = Path(unstuck.__file__).parents[2]
    try:
        if not (root / "pyproject.toml").is_file():
            raise Refusal("these commands work in a clone of the project, installed with `make setup`.")
        if options.command == "new-rule":
            return new_rule.main(root, options.code, options.name, options.family, as_folder=options.folder)
        if options.command == "tables":
            return tables.main(root, check=options.check)
        if options.command == "compat":
            return compat.main(root, options.combinations, options.keep)
        if options.command == "golden":
            return golden.main(root, options.parts, accept=options.accept)
        return demo.main(root)
    except Refusal as refusal:
        print(f"unstuck.dev: {refusal}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m unstuck.dev", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    rule = commands.add_parser("new-rule", help="write the two files of a new rule")
    rule.add_argument("code", help="its code in the catalogue, such as O12")
    rule.add_argument("name", help="the pattern in kebab-case, such as double-softmax")
    rule.add_argument("family", help="the folder under rules/, such as convergence")
    rule.add_argument("--folder", action="store_true", help="for a large rule: a folder instead of two files")
    table = commands.add_parser("tables", help="rewrite the generated tables in README.md and docs")
    table.add_argument("--check", action="store_true", help="only say whether they are up to date")
    other = commands.add_parser("compat", help="try other Pythons and torches (large downloads)")
    other.add_argument("combinations", nargs="*", metavar="PYTHON:TORCH", help="such as 3.12:2.13.0; all if none")
    other.add_argument("--keep", metavar="FOLDER", type=Path, help="leave the environments there, to be used again")
    frozen = commands.add_parser("golden", help="compare findings, documents, help and formats with what is recorded")
    frozen.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(golden.PARTS)}; all if none")
    frozen.add_argument("--accept", action="store_true", help="record what is found now")
    commands.add_parser("demo", help="diagnose a training script that does not learn")
    return parser


if __name__ == "__main__":
    sys.exit(main())
