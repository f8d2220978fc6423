"""`unstuck rules`: list all rules."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence

from unstuck.cli import common
from unstuck.report.terminal import Line
from unstuck.rule import Rule, all_rules

HELP = "list all rules"
GROUP = "more"

NARROWEST = 25
HEADER = ("code", "name", "severity", "seen by", "pitfall")


def main(arguments: Sequence[str]) -> int:
    """Print the table of rules."""
    parser = common.verb_parser(
        "rules",
        "List all rules, and where each can be found: in source, a setup, a run, a surface or an experiment.",
        epilog="",
    )
    common.add_format_option(parser)
    options = parser.parse_args(arguments)
    if options.format == "json":
        from unstuck.report import json

        sys.stdout.write(json.encode([json.rule_document(rule) for rule in all_rules()]))
    else:
        from unstuck.report.terminal import coloured, columns_of, plain, show_paged, wants_colour

        lines = table(all_rules(), columns_of(sys.stdout))
        show_paged(coloured(lines) if wants_colour(sys.stdout) else plain(lines), sys.stdout)
    return common.CLEAN


def table(rules: Iterable[Rule], width: int) -> list[Line]:
    """The rules in aligned columns; the last one is wrapped to the width, or moves below if that is too narrow."""
    rows = [HEADER, *(_row(rule) for rule in rules)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER) - 1)]
    room = width - sum(widths) - 2 * len(widths)
    indent = width - room if room >= NARROWEST else len("code  ")
    lines: list[Line] = []
    for row in rows:
        styles = ("strong", "", row[2], "quiet") if row is not HEADER else ("quiet",) * 4
        cells: Line = []
        for cell, size, style in zip(row, widths, styles, strict=False):
            cells += [(cell, style), (" " * (size - len(cell) + 2), "")]
        first, *rest = textwrap.wrap(row[-1], width - indent, break_on_hyphens=False)
        lines += [[*cells, (first, "")]] if room >= NARROWEST else [cells, [(" " * indent + first, "")]]
        lines += [[(" " * indent + line, "")] for line in rest]
    return lines


def _row(rule: Rule) -> tuple[str, ...]:
    seen_by = " ".join(witness.value for witness in rule.witnesses)
    return (rule.code, rule.name, rule.severity.value, seen_by, rule.title)
