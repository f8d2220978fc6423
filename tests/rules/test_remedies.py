"""A remedy follows from what was found, whatever the user's names are."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.diagnose.prove import remedies_of
from unstuck.findings import Subject
from unstuck.interventions import Intervention, TrainingMode
from unstuck.judge import judge
from unstuck.rule import Rule, all_rules, find_rule
from unstuck.source import read_script

STAYS_IN_EVAL = """\
import torch
from torch import nn

torch.manual_seed(0)
NAME = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 1))
optimizer = torch.optim.SGD(NAME.parameters(), lr=0.01)
for epoch in range(5):
    for step in range(10):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(NAME(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    NAME.eval()
    with torch.no_grad():
        print(NAME(torch.randn(4, 8)).mean())
"""
RULE = find_rule("O05")


@pytest.mark.parametrize("name", ["model", "evaluator"])
def test_a_model_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(STAYS_IN_EVAL.replace("NAME", name))
    (found,) = [d for d in judge(scripts=(read_script(path),)).diagnoses if d.lead.code == "O05"]
    assert (TrainingMode(),) in [remedied.changes for remedied in remedies_of(found)]


@pytest.mark.parametrize("rule", [rule for rule in all_rules() if rule.remedy], ids=lambda rule: rule.code)
def test_remedies_consist_of_interventions(rule: Rule) -> None:
    assert rule.remedy is not None
    for variant in rule.variants or ("",):
        found = rule.finding("It is.", cause="So.", fix="Do.", subject=Subject("loop", "loop"), variant=variant)
        for changes in rule.remedy(found):
            assert changes
            assert all(isinstance(change, Intervention) for change in changes)
