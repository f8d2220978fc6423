"""`ablate` and `optimizer`: a part holds a run back if it learns without it, on three seeds, and hardly with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from unstuck.experiments.ablate import ablate, remedy
from unstuck.experiments.optimizer import optimizer
from unstuck.experiments.swaps import level_of
from unstuck.findings.curve import Curve
from unstuck.findings.results import Experiment, Pair, Status
from unstuck.interventions import NoDropout, NoSchedule
from unstuck.rules.recipe import optimizer_settings, over_regularized, schedule_holds_back
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
y = torch.randint(10, (2000,))
x = (1.5 * torch.randn(10, 20))[y] + torch.randn(2000, 20)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout({drop}), nn.Linear(64, 10))
optimizer = torch.optim.{optimizer}(model.parameters(), lr={rate})
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: {factor})
for epoch in range({epochs}):
    for inputs, labels in loader:
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
"""
USUAL = {
    "drop": "0.0",
    "optimizer": "Adam",
    "rate": "3e-3",
    "factor": "1.0",
    "epochs": "4",
    "loss": "nn.functional.cross_entropy(model(inputs), labels)",
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    home = tmp_path_factory.mktemp("swaps")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with Runner(Program("train.py"), home / "trials") as made:
            yield made


def tried(runner: Runner, **parts: str) -> Context:
    (runner.folder.parent / "train.py").write_text(SCRIPT.format(**{**USUAL, **parts}))
    return Context(runner, 120.0)


def pair(own: Sequence[float | None], other: Sequence[float | None]) -> Pair:
    curves = [Curve(tuple(range(len(values))), tuple(values)) for values in (own, other)]
    return Pair(0, curves[0], curves[1], Status.STOPPED, Status.STOPPED)


def held_back(own: float, other: float, guess: float | None) -> bool:
    level = level_of([pair([3.0, *[own] * 50], [3.0, *[other] * 50])], guess)
    assert level is not None
    return level.is_held_back


def test_progress_counts_from_the_guess() -> None:
    assert held_back(2.2, 0.1, 2.3)
    assert held_back(2.4, 2.0, 2.3), "it does not beat a guess, and does without"
    assert not held_back(0.3, 0.01, 2.3), "training without dropout ends lower in almost every run"
    assert not held_back(2.5, 2.4, 2.3), "neither beats a guess"
    assert not held_back(1.5, 0.1, None), "from the first loss it has made a fair part of the way"


def test_a_run_that_breaks_makes_no_progress() -> None:
    level = level_of([pair([2.0, 1e9, None], [2.0, *[0.5] * 50])], None)
    assert level is not None
    assert level.is_held_back
    assert level_of([pair([2.0] * 50, [2.0, None])], None) is None


def test_dropout_that_leaves_nothing_is_found_and_proven_by_its_own_runs(runner: Runner) -> None:
    done = ablate(tried(runner, drop="0.97"))
    assert done.verdict == "held back", done.sentence
    assert done.measures["part"] == "dropout"
    assert len(done.pairs) == 3
    assert isinstance(remedy(done), NoDropout)
    [finding] = over_regularized.in_experiment(done)
    assert (finding.code, finding.variant) == ("R20", "dropout")
    assert "dropout 0.97" in finding.message
    [changes] = over_regularized.remedied(finding)
    assert changes == (NoDropout(),)


def test_moderate_dropout_is_not(runner: Runner) -> None:
    done = ablate(tried(runner, drop="0.4"))
    assert done.verdict == "no better", done.sentence
    assert "dropout" in str(done.measures["tried"])
    assert not list(over_regularized.in_experiment(done))


@pytest.mark.slow
def test_a_warm_up_counts_if_the_run_ends_in_it(runner: Runner) -> None:
    done = ablate(tried(runner, factor="min(1.0, step / 100_000)"))
    assert done.measures.get("part") == "the schedule", done
    assert isinstance(remedy(done), NoSchedule)
    assert list(schedule_holds_back.in_experiment(done))


@pytest.mark.slow
def test_a_warm_up_does_not_count_if_the_run_goes_on(runner: Runner) -> None:
    done = ablate(tried(runner, factor="min(1.0, step / 100_000)", epochs="1000"))
    assert "schedule" not in str(done.measures.get("tried")), done
    assert done.verdict != "held back"


def found_by(done: Experiment) -> list[str]:
    return [finding.code for finding in optimizer_settings.in_experiment(done)]


def test_adam_learns_where_plain_sgd_at_a_tiny_rate_does_not(runner: Runner) -> None:
    done = optimizer(tried(runner, optimizer="SGD", rate="1e-5"))
    assert done.verdict == "held back", done.sentence
    assert found_by(done) == ["R23"]
    assert "SGD at 1e-05" in done.sentence


@pytest.mark.slow
def test_adam_acquits_the_optimizer_where_labels_are_noise(runner: Runner) -> None:
    loss = "nn.functional.cross_entropy(model(inputs), labels[torch.randperm(len(labels))])"
    done = optimizer(tried(runner, optimizer="SGD", rate="0.05", loss=loss))
    assert done.verdict == "no better", done.sentence
    assert not found_by(done)


def test_a_loss_whose_goal_moves_is_not_compared(runner: Runner) -> None:
    loss = "(model(inputs).softmax(1)[:, 0].log() * torch.randn(len(labels))).mean()"
    done = optimizer(tried(runner, loss=loss))
    assert done.verdict == "undecided"
    assert "need not be" in done.sentence
