"""docs/check.md holds, and a program that calls `check` can be watched."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from unstuck.cli import main
from unstuck.rule import find_rule

pytest.importorskip("torch")

PAGE = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
PROGRAM = """
import torch
import unstuck
from torch import nn

torch.manual_seed(0)
centres, labels = torch.randn(3, 8), torch.randint(0, 3, (512,))
inputs = centres[labels] + 0.3 * torch.randn(512, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
assert unstuck.check(model, nn.CrossEntropyLoss(), optimizer, (inputs[:64], labels[:64]))
for _ in range(40):
    batch = torch.randint(0, 512, (64,))
    loss = nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_first_example_says_what_the_page_shows() -> None:
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", PAGE, re.DOTALL)[:2]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "docs/check.md", "exec"), {})
    assert said.getvalue().replace("\n", " ").startswith(shown.partition(" ...")[0])


def test_every_rule_in_the_table_looks_at_live_objects() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    codes = {code for row in rows for code in re.findall(r"\b[A-Z]\d\d\b", row)}
    rules = {code: find_rule(code) for code in codes}
    assert codes
    assert [code for code, rule in rules.items() if rule is None or rule.setup is None] == []


def test_every_rule_that_looks_at_live_objects_is_in_the_table() -> None:
    from unstuck.rule import all_rules

    missing = [rule.code for rule in all_rules() if rule.setup and rule.code not in PAGE]
    assert missing == []


def test_a_program_that_checks_first_can_be_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM, encoding="utf-8")
    assert main(["run", "--fail-on", "advice", "train.py"]) == 0
    assert "finished after 40 optimizer steps" in capsys.readouterr().err
