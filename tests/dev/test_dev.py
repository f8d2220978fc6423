"""`python -m unstuck.dev`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import finds, make_rule

from unstuck import testing
from unstuck.dev import compat, demo, golden, new_rule, packages, tables
from unstuck.dev.common import Refusal
from unstuck.page import HEADINGS, read_page

FOLDER = Path("src/unstuck/rules/wiring")


def test_a_new_rule_is_a_pair_that_reads_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new_rule.main(tmp_path, "O99", "frozen-head", "wiring") == 0
    code = (tmp_path / FOLDER / "frozen_head.py").read_text()
    ast.parse(code)
    assert 'Rule("O99", "frozen-head"' in code
    page = read_page(tmp_path / FOLDER / "frozen_head.md")
    assert tuple(page.sections) == HEADINGS
    assert page.examples[0].marked_lines("frozen-head")
    assert (tmp_path / FOLDER / "__init__.py").exists()
    assert "pytest tests/rules -k O99" in capsys.readouterr().out


def test_a_new_rule_overwrites_nothing(tmp_path: Path) -> None:
    new_rule.main(tmp_path, "O99", "frozen-head", "wiring")
    page = tmp_path / FOLDER / "frozen_head.md"
    (tmp_path / FOLDER / "frozen_head.py").unlink()
    page.write_text("mine")
    with pytest.raises(Refusal, match="already there"):
        new_rule.main(tmp_path, "O99", "frozen-head", "wiring")
    assert page.read_text() == "mine"
    assert not (tmp_path / FOLDER / "frozen_head.py").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("99", "frozen-head", "wiring"), "'99' is not a code"),
        (("O99", "Frozen_Head", "wiring"), "'Frozen_Head' is not a name"),
        (("O99", "frozen-head", "wirring"), "'wirring' is not a family: choose one of convergence"),
        (("O12", "frozen-head", "wiring"), "O12 double-softmax is already in the catalogue"),
        (("O99", "double-softmax", "wiring"), "O12 double-softmax is already in the catalogue"),
    ],
)
def test_a_new_rule_needs_good_words(tmp_path: Path, words: tuple[str, str, str], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence):
        new_rule.main(tmp_path, *words)


def project(root: Path) -> Path:
    (root / "docs").mkdir()
    for file in (tables.README, tables.RULES):
        (root / file).write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    (root / packages.FILE).write_text(f"{packages.BEGIN}\n{packages.END}\n")
    return root


def test_tables_are_rewritten_and_then_fresh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = project(tmp_path)
    assert tables.main(root, check=True) == 1
    assert "stale in README.md, docs/rules.md, docs/architecture.md; run `make tables`" in capsys.readouterr().err
    assert tables.main(root, check=False) == 0
    assert tables.main(root, check=True) == 0
    text = (root / "docs/rules.md").read_text()
    assert text.startswith(f"before\n{tables.BEGIN}\n| code |")
    assert text.endswith(f"{tables.END}\nafter\n")
    assert "(../src/unstuck/rules/" in text
    assert "| convergence | " in (root / "README.md").read_text()
    assert "| `lint/` | " in (root / packages.FILE).read_text()


def test_a_row_of_the_table() -> None:
    rule = make_rule()
    rule.in_run(finds())
    rule.family, rule.page = "convergence", Path("double_softmax.md")
    link = "[double-softmax](rules/convergence/double_softmax.md)"
    row = tables.rule_table([rule], "rules").splitlines()[-1]
    assert row == f"| O12 | {link} | error | run | {rule.title} |"


def test_a_file_without_marks_is_refused() -> None:
    with pytest.raises(Refusal, match=r"README.md has no <!-- rules:begin -->"):
        tables.with_table("no marks", "table", "README.md")


def test_the_demo_needs_its_script(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="is missing"):
        demo.main(tmp_path)


def test_a_new_rule_has_our_style_and_fails_the_contract_until_it_is_written(tmp_path: Path) -> None:
    new_rule.main(tmp_path, "O99", "frozen-head", "wiring")
    file = tmp_path / FOLDER / "frozen_head.py"
    config = str(Path(__file__).parents[2] / "pyproject.toml")
    for check in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *check, "--no-cache", "--config", config, str(file)]
        assert subprocess.run(ruff, capture_output=True).returncode == 0
    names: dict[str, Any] = {}
    exec(file.read_text(), names)
    rule = names["rule"]
    rule.page = file.with_suffix(".md")
    testing.check_identity(rule)
    with pytest.raises(AssertionError, match="still holds the text of the template"):
        testing.check_rule(rule)
    page = rule.page.read_text(encoding="utf-8")
    for text in testing.TEMPLATE_TEXTS:
        page = page.replace(text, "Written.")
    rule.page.write_text(page, encoding="utf-8")
    testing.check_page(rule)
    with pytest.raises(AssertionError, match="lint on the broken example must mark line 7"):
        testing.check_rule(rule)


def test_the_text_of_the_template_is_what_a_finished_page_may_not_hold() -> None:
    from unstuck.dev.new_rule import PAGE
    from unstuck.testing import TEMPLATE_TEXTS

    assert all(text in PAGE for text in TEMPLATE_TEXTS)


def test_combinations_are_those_we_claim(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    claimed = [f"{python}:{torch}" for python, torch in compat._claimed(root)]
    assert {"3.11:2.13.0", "3.12:2.13.0", "3.13:2.13.0", "3.11:2.4.0"} <= set(claimed)
    with pytest.raises(Refusal, match=r"'torch2' is not a combination; write it as 3\.12:2\.13\.0"):
        compat.main(tmp_path, ["torch2"], None)


def test_a_python_that_is_not_there_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that is, but only says that it cannot run, as version managers have them."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PYTHONS", str(tmp_path))
    assert compat.main(tmp_path, ["3.99:2.4.0"], None) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Python 3.99, torch 2.4.0: not tried: no python3.99 that runs")
    shim.write_text("#!/bin/sh\nexit 0\n")
    assert compat.find_python("3.99") == str(shim)


def test_results_are_counted(tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    assert compat.counted(report) == "no tests ran"
    report.write_text('<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3"/></testsuites>')
    assert compat.counted(report) == "3 tests passed, 3 failed, 3 skipped"


@pytest.mark.skipif(sys.version_info[:2] != golden.PYTHON, reason="argparse prints help differently")
def test_help_and_record_are_as_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    changed = golden.main(Path(__file__).parents[2], ["help", "record"], accept=False)
    assert not changed, f"{capsys.readouterr().out}If this is meant: make golden ONLY='help record' ACCEPT=1"


def test_a_difference_is_shown_until_it_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main(tmp_path, ["record"], accept=True) == 0
    names = tmp_path / golden.FOLDER / "record/names.facts.txt"
    names.write_text(names.read_text().replace("unstuck.watch(", "unstuck.wach("))
    capsys.readouterr()
    assert golden.main(tmp_path, ["record"], accept=False) == 1
    shown = capsys.readouterr().out.splitlines()
    assert {line.partition("(")[0] for line in shown if line[:2] in ("-u", "+u")} == {"-unstuck.wach", "+unstuck.watch"}
    assert golden.main(tmp_path, ["record"], accept=True) == 0
    assert golden.main(tmp_path, ["record"], accept=False) == 0
