"""`baseline`: real inputs against zeroed and exchanged ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from unstuck.experiments.baseline import baseline, compare
from unstuck.findings import Severity
from unstuck.findings.curve import Curve
from unstuck.findings.results import Experiment
from unstuck.rules.recipe.ignores_input import in_experiment
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(20000, 6)
labels = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

def train(x, y):
    for inputs, wanted in DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True):
        loss = F.cross_entropy(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("baseline")


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Runner]:
    home = folder / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with Runner(Program("train.py"), folder / "trials") as made:
            yield made


def tried(runner: Runner, folder: Path, loop: str) -> Experiment:
    (folder / "home" / "train.py").write_text(HEAD + loop)
    return baseline(Context(runner, 90.0))


def curve(values: Sequence[float]) -> Curve:
    return Curve(tuple(range(len(values))), tuple(values))


@pytest.mark.slow
def test_what_is_learned_from_the_input_is_seen(runner: Runner, folder: Path) -> None:
    done = tried(runner, folder, "train(x, labels)")
    assert done.verdict == "learns", done
    assert not list(in_experiment(done))


@pytest.mark.slow
def test_targets_that_do_not_belong_to_their_inputs(runner: Runner, folder: Path) -> None:
    done = tried(runner, folder, "train(x, labels[torch.randperm(len(labels))])")
    assert done.verdict == "ignores", done
    finding = next(iter(in_experiment(done)))
    assert finding.severity is Severity.ERROR
    assert "1.39" in finding.message


@pytest.mark.slow
def test_a_loop_that_learns_nothing_at_all_is_not_said_to_ignore_its_input(runner: Runner, folder: Path) -> None:
    done = tried(runner, folder, "optimizer.param_groups[0]['lr'] = 0.0\ntrain(x, labels)")
    assert done.verdict == "undecided", done
    assert not list(in_experiment(done))


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("print('nothing')", "No optimizer step"),
        ("train(x[:640], labels[:640])", "too few"),
        ("1 / 0", "No optimizer step"),
    ],
)
@pytest.mark.slow
def test_odd_programs_are_undecided(runner: Runner, folder: Path, loop: str, said: str) -> None:
    done = tried(runner, folder, loop)
    assert done.verdict == "undecided"
    assert said in done.sentence


def test_a_small_advantage_in_noise_that_both_runs_share_is_seen() -> None:
    rng = random.Random(0)
    noise = [rng.gauss(0, 0.3) for _ in range(300)]
    without = curve([2.0 + shared for shared in noise])
    better = compare("zeros", 0, curve([1.9 + shared + rng.gauss(0, 0.01) for shared in noise]), without)
    same = compare("zeros", 0, curve([2.0 + shared + rng.gauss(0, 0.01) for shared in noise]), without)
    assert better is not None
    assert same is not None
    assert not better.is_none
    assert same.is_none
    assert not same.is_clear


def test_noise_that_is_not_shared_proves_nothing() -> None:
    rng = random.Random(0)
    real, other = ([2.0 + rng.gauss(0, 1.0) for _ in range(80)] for _ in range(2))
    compared = compare("zeros", 0, curve(real), curve(other))
    assert compared is not None
    assert not compared.is_none
    assert not compared.is_clear
