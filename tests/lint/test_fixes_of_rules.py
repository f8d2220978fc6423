"""Every edit that a rule offers works: the file parses, the finding is gone, and a second time changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.lint.engine import lint
from unstuck.lint.fixes import ALL, Fixed, fix_all, write
from unstuck.lint.settings import Settings
from unstuck.page import read_page
from unstuck.rule import all_rules

CASES = Path(__file__).parent.parent / "source" / "cases" / "broken"


def broken_scripts() -> dict[str, str]:
    pages = {
        f"{rule.code}:{example.line}": example.code
        for rule in all_rules()
        if rule.source and rule.page.is_file()
        for example in read_page(rule.page).examples
        if example.section == "Broken"
    }
    cases = {path.name: path.read_text(encoding="utf-8") for path in sorted(CASES.glob("*.py"))}
    return {**pages, **cases}


SCRIPTS = broken_scripts()


def fixed(path: Path) -> list[Fixed]:
    files, problems = fix_all(lint([str(path)], Settings()), Settings(), ALL)
    assert not problems
    return files


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_rule_offers_works(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPTS[name], encoding="utf-8")
    for file in fixed(path):
        assert [(finding.code, str(finding.place)) for finding in file.refused] == []
        write(file)
    assert [finding.code for file in fixed(path) for finding in file.applied] == []


FIXED_BY = {
    "O04": {"o04_between.py", "o04_between_model.py", "o04_gan_zero_wrong.py", "o04_step_first.py", "o04_fn_never.py"},
    "G01": {"g01_accum.py", "g01_before.py", "g01_before_zero.py", "g01_cpg.py"},
    "O12": {"o12_lightning.py", "o12_seq_ordered.py", "o12_add_module.py", "o12_selfsoftmax.py", "o12_hf.py"},
}


@pytest.mark.parametrize(("code", "names"), FIXED_BY.items())
def test_the_common_forms_have_a_fix(code: str, names: set[str], tmp_path: Path) -> None:
    for name in names:
        path = tmp_path / name
        path.write_text(SCRIPTS[name], encoding="utf-8")
        applied = [finding.code for file in fixed(path) for finding in file.applied]
        assert code in applied, name


def test_what_accumulates_is_not_cleared_in_every_turn(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPTS["o04_accum_zero_each.py"], encoding="utf-8")
    assert fixed(path) == []
