"""`unstuck explain` and `unstuck rules`."""

from __future__ import annotations

import io
import json
import sys

import pytest

from unstuck import cli
from unstuck.cli.verbs.rules import table
from unstuck.report.help import shortened
from unstuck.report.terminal import plain
from unstuck.rule import all_rules, find_rule


@pytest.mark.parametrize("word", ["O12", "o12", "double-softmax", "double_softmax", " Double-Softmax "])
def test_explain_finds_a_rule_by_code_or_name(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--all", word]) == 0
    rule = find_rule("O12")
    assert rule
    assert capsys.readouterr().out == rule.page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("O112", "did you mean O12?"),
        ("double-sofmtax", "did you mean double-softmax?"),
        ("?", "`unstuck rules` lists them."),
        ("O99", "`unstuck rules` lists them."),
        ("loss-of-patience", "`unstuck rules` lists them."),
        ("softmax", "did you mean softmax-dim?"),
    ],
)
def test_explain_suggests_the_nearest(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", word]) == 2
    assert capsys.readouterr().err == f"unstuck: there is no rule {word!r}; {hint}\n"


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "O12", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"code", "name", "severity", "title", "witnesses", "variants", "page"}
    assert document["page"].startswith("# O12 double-softmax: ")


def test_explain_in_a_terminal_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert cli.main(["explain", "O12"]) == 0
    shown = stream.getvalue()
    assert "## Why" not in shown
    assert "Why" in shown


def test_explain_where_there_is_no_unicode(unstuck: object) -> None:
    done = unstuck("explain", "O12", PYTHONIOENCODING="ascii")  # type: ignore[operator]
    assert (done.returncode, done.stderr) == (0, "")


def test_rules_lists_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["code", "name", "severity", "seen", "by", "pitfall"]
    assert [row.split()[0] for row in rows if row[0] != " "] == [rule.code for rule in all_rules()]


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_table_of_rules_fits_the_terminal(columns: int) -> None:
    lines = plain(table(all_rules(), columns)).splitlines()
    assert all(len(line) <= columns for line in lines)
    said = " ".join(" ".join(lines).split())
    assert all(all(word in said for word in rule.title.split()) for rule in all_rules())


def test_rules_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--format", "json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [document["code"] for document in documents] == [rule.code for rule in all_rules()]
    assert documents[0].keys() == {"code", "name", "severity", "title", "witnesses", "variants"}


def test_explain_shows_the_first_examples_unless_all_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "O12"]) == 0
    short = capsys.readouterr().out
    assert cli.main(["explain", "--all", "O12"]) == 0
    whole = capsys.readouterr().out
    assert short.count("```python") == 2
    assert "## Why" in short
    assert short.count("# <-- here") == 1
    hidden = whole.count("```python") - 2
    assert short.endswith(f"{hidden} more examples: unstuck explain --all O12\n")
    example = "```python source\nx = 1\n```\n"
    page = f"# O12 double-softmax: ...\n\n## Broken\n\n{example}\n{example}"
    assert shortened(page).endswith("\n1 more example: unstuck explain --all O12\n")
