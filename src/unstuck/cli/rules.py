"""`unstuck rules`: list every pitfall that is recognised."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from unstuck.cli import common
from unstuck.rule import Rule, all_rules

HEADER = ("code", "name", "severity", "seen by", "pitfall")


def main(arguments: Sequence[str]) -> int:
    """Print the table of rules."""
    parser = common.verb_parser("rules", "List every pitfall that is recognised, and who can see it.", epilog="")
    common.add_format_option(parser)
    options = parser.parse_args(arguments)
    if options.format == "json":
        from unstuck.report import json

        sys.stdout.write(json.encode([json.rule_document(rule) for rule in all_rules()]))
    else:
        common.print_to_stdout(table(all_rules()))
    return common.CLEAN


def table(rules: Iterable[Rule]) -> str:
    """The rules in aligned columns; the last one is as long as it likes."""
    rows = [HEADER, *(_row(rule) for rule in rules)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER) - 1)]
    lines = (
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
    return "\n".join(lines) + "\n"


def _row(rule: Rule) -> tuple[str, ...]:
    seen_by = " ".join(witness.value for witness in rule.witnesses)
    return (rule.code, rule.name, rule.severity.value, seen_by, rule.title)
