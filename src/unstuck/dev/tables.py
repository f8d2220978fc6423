"""The generated tables: families of rules in README.md, rules in docs/rules.md, packages in docs/architecture.md."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import unstuck
from unstuck.dev import packages
from unstuck.dev.common import Refusal
from unstuck.page import page_name
from unstuck.rule import Rule, own_rules

BEGIN = "<!-- rules:begin -->"
END = "<!-- rules:end -->"
README = Path("README.md")
RULES = Path("docs/rules.md")


def main(root: Path, *, check: bool) -> int:
    """Rewrite the tables, or only say which are stale."""
    rules = own_rules()
    rooms = packages.package_table(Path(unstuck.__file__).parent)
    tables = {
        README: (family_table(rules), (BEGIN, END)),
        RULES: (rule_table(rules, "../src/unstuck/rules"), (BEGIN, END)),
        packages.FILE: (rooms, (packages.BEGIN, packages.END)),
    }
    stale = []
    for file, (table, marks) in tables.items():
        before = _read(root / file)
        after = with_table(before, table, str(file), marks)
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


def family_table(rules: Iterable[Rule]) -> str:
    """The families of rules, each with how many it has and with what its package says of itself."""
    rows = ["| family | rules | about |", "|---|---|---|"]
    for family, members in groupby(sorted(rules, key=attrgetter("family")), key=attrgetter("family")):
        about = (importlib.import_module(f"unstuck.rules.{family}").__doc__ or "").strip()
        rows.append(f"| {family} | {len(list(members))} | {about} |")
    return "\n".join(rows)


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
