"""The generated table of rules in README.md and docs/rules.md."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from unstuck.dev.common import Refusal
from unstuck.page import page_name
from unstuck.rule import Rule, own_rules

BEGIN = "<!-- rules:begin -->"
END = "<!-- rules:end -->"
FILES = (Path("README.md"), Path("docs/rules.md"))


def main(root: Path, *, check: bool) -> int:
    """Rewrite the tables, or only say which are stale."""
    stale = []
    for file in FILES:
        before = _read(root / file)
        after = with_table(before, rule_table(own_rules(), _way_to_pages(file)), str(file))
        if before != after:
            stale.append(str(file))
            if not check:
                (root / file).write_text(after, encoding="utf-8")
    if check and stale:
        print(f"The table of rules is stale in {', '.join(stale)}; run `make tables`.", file=sys.stderr)
        return 1
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        raise Refusal(f"{path.name} is missing; it holds the table of rules.") from None


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


def with_table(text: str, table: str, name: str) -> str:
    """The text with what stands between the two marks replaced."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise Refusal(f"{name} has no {BEGIN} and {END} around its table of rules.")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"
