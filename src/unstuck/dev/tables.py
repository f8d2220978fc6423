"""The generated tables: rules in README.md and docs/rules.md, packages in docs/architecture.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import unstuck
from unstuck.dev import packages
from unstuck.dev.common import Refusal
from unstuck.page import page_name
from unstuck.rule import Rule, own_rules

BEGIN = "<!-- rules:begin -->"
END = "<!-- rules:end -->"
FILES = (Path("README.md"), Path("docs/rules.md"))


def main(root: Path, *, check: bool) -> int:
    """Rewrite the tables, or only say which are stale."""
    stale = []
    rooms = packages.package_table(Path(unstuck.__file__).parent)
    for file in (*FILES, packages.FILE):
        before = _read(root / file)
        if file == packages.FILE:
            after = with_table(before, rooms, str(file), (packages.BEGIN, packages.END))
        else:
            after = with_table(before, rule_table(own_rules(), _way_to_pages(file)), str(file))
        if before != after:
            stale.append(str(file))
            if not check:
                (root / file).write_text(after, encoding="utf-8")
    if check and stale:
        print(f"The generated tables are stale in {', '.join(stale)}; run `make tables`.", file=sys.stderr)
        return 1
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        raise Refusal(f"{path.name} is missing; it holds a generated table.") from None


def _way_to_pages(file: Path) -> str:
    return "../" * (len(file.parts) - 1) + "src/unstuck/rules"


def rule_table(rules: Iterable[Rule], pages: str) -> str:
    """The rules as a Markdown table, each linked to its page."""
    rows = ["| code | name | severity | seen in | pitfall |", "|---|---|---|---|---|"]
    for rule in rules:
        seen = ", ".join(witness.value for witness in rule.witnesses)
        link = f"[{rule.name}]({pages}/{rule.family}/{page_name(rule.page)})"
        rows.append(f"| {rule.code} | {link} | {rule.severity.value} | {seen} | {rule.title} |")
    return "\n".join(rows)


def with_table(text: str, table: str, name: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """The text with a new table between the two marks."""
    begin, end = marks
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise Refusal(f"{name} has no {begin} and {end} around its table.")
    return f"{before}{begin}\n{table}\n{end}{after}"
