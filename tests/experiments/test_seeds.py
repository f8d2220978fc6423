"""Seeds: is a run reproducible, what differs, and how much is chance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import unstuck
from unstuck.experiments.seeds import seeds
from unstuck.findings.results import Experiment
from unstuck.rule import find_rule
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner

SCRIPT = """
import random, time
import numpy as np
import torch
from torch import nn
{seeding}
rng = np.random.default_rng({number})
model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
{before}
for _ in range(40):
    x = torch.tensor(rng.normal(size=(8, 4)), dtype=torch.float32) + random.Random({number}).random() + torch.rand(1)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def tried(folder: Path, monkeypatch: pytest.MonkeyPatch, **parts: str) -> Experiment:
    text = SCRIPT.format(**{"seeding": "torch.manual_seed(1)", "number": "5", "before": "", **parts})
    (folder / "train.py").write_text(text)
    monkeypatch.chdir(folder)
    with Runner(Program("train.py"), folder / ".unstuck" / "try") as runner:
        return seeds(Context(runner, 60))


def fixes(experiment: Experiment) -> list[str]:
    rule = find_rule("R06")
    assert rule is not None
    assert rule.experiment is not None
    return [found.fix.text if found.fix else "" for found in rule.experiment(experiment)]


@pytest.mark.slow
def test_a_seeded_script_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tried(tmp_path, monkeypatch)
    assert found.verdict == "reproducible", found.sentence
    assert found.measures["first_difference"] is None
    assert 0 < float(found.measures["noise"] or 0) < 2, "other seeds end elsewhere"
    assert fixes(found) == []


@pytest.mark.slow
def test_an_unseeded_script_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tried(tmp_path, monkeypatch, seeding="", number="")
    assert found.verdict == "not reproducible"
    assert found.measures["first_difference"] == 0
    assert found.measures["once_seeded"] is True, found.sentence
    assert "the initial weights" in str(found.measures["source"])
    assert "torch.manual_seed(0)" in fixes(found)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "source", "seeded", "fix"),
    [
        ({"number": ""}, "the data of the first step", True, "manual_seed"),
        ({"before": "torch.seed()"}, "", True, "manual_seed"),
        ({"seeding": "torch.manual_seed(time.time_ns() % 10**9)"}, "the seed that the script sets", False, "constant"),
        ({"before": "model[0].weight.data.add_(time.time_ns() % 1000 / 1e4)"}, "initial weights", False, "determin"),
    ],
)
def test_the_source_is_named(
    parts: dict[str, str], source: str, seeded: bool, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tried(tmp_path, monkeypatch, **parts)
    assert found.verdict == "not reproducible"
    assert source in str(found.measures["source"]), found.sentence
    assert found.measures["once_seeded"] is seeded
    assert fix in fixes(found)[0]


@pytest.mark.slow
def test_a_script_without_training_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.rand(3))\n")
    monkeypatch.chdir(tmp_path)
    with Runner(Program("train.py"), tmp_path / ".unstuck" / "try") as runner:
        found = seeds(Context(runner, 60))
    assert found.verdict == "undecided"
    assert fixes(found) == []


def test_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 2))
    data = TensorDataset(torch.randn(40, 6), torch.randint(2, (40,)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    answer = unstuck.seeds(model, nn.CrossEntropyLoss(), optimizer, DataLoader(data, 8, shuffle=True))
    torch.set_num_threads(threads)
    assert answer.verdict == "reproducible", answer
    assert float(answer.experiment.measures["noise"] or 0) > 0
    assert answer.findings == []
    assert len(answer.curves) == 5
