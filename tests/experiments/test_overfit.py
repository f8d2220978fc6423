"""`overfit`: passes where a loop can learn one batch by heart, fails only where it certainly cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from unstuck.experiments.overfit import Levels, levels_of, overfit, read
from unstuck.findings.curve import Curve
from unstuck.findings.results import Experiment
from unstuck.rules.convergence.cannot_overfit_one_batch import in_experiment
from unstuck.rules.recipe import conflicting_targets
from unstuck.trials.context import Context
from unstuck.trials.runner import Program, Runner

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 6)
labels = torch.randint(4, (256,))
loader = DataLoader(TensorDataset(x, labels), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("overfit")


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Runner]:
    home = folder / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with Runner(Program("train.py"), folder / "trials") as made:
            yield made


def tried(runner: Runner, folder: Path, loop: str, head: str = HEAD) -> Experiment:
    (folder / "home" / "train.py").write_text(head + loop)
    return overfit(Context(runner, 60.0))


def number(experiment: Experiment, name: str) -> float:
    value = experiment.measures[name]
    assert isinstance(value, int | float), (name, experiment)
    return value


def curve(values: Sequence[float | None]) -> Curve:
    return Curve(tuple(range(len(values))), tuple(values))


@pytest.mark.slow
def test_random_labels_are_learned_by_heart_though_the_script_drops_and_decays(runner: Runner, folder: Path) -> None:
    done = tried(runner, folder, "for x, y in loader: step(F.cross_entropy(model(x), y))")
    assert done.verdict == "passed", done
    assert number(done, "expected") == pytest.approx(math.log(4))
    assert number(done, "floor") == 0
    assert number(done, "end") < 0.1
    assert number(done, "steps") > 8, "a frozen loader has no end"
    assert done.sentence.startswith("The loop can overfit one batch: the loss went from ")
    assert ", a guess costs 1.39, and its floor is 0; " in done.sentence
    assert done.sentence.endswith("dropout and weight decay were off, other batches were not tried.")
    assert not list(in_experiment(done))


@pytest.mark.slow
def test_a_floor_above_zero_is_known(runner: Runner, folder: Path) -> None:
    done = tried(runner, folder, "for x, y in loader: step(F.cross_entropy(model(x), y, label_smoothing=0.4) / 2)")
    right, wrong = 0.7, 0.1
    floor = -(right * math.log(right) + 3 * wrong * math.log(wrong)) / 2
    assert done.verdict == "passed", done
    assert number(done, "floor") == pytest.approx(floor, rel=1e-3)
    assert number(done, "end") == pytest.approx(floor, rel=0.1)


def test_equal_inputs_with_different_targets_have_a_floor(runner: Runner, folder: Path) -> None:
    loop = """
model = nn.Sequential(nn.Linear(1, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.arange(8.0).repeat(4)[:, None] / 4
y = x.sin() + torch.arange(32.0)[:, None] % 3
for i in range(300): step(F.mse_loss(model(x), y))
"""
    done = tried(runner, folder, loop)
    assert done.verdict == "passed", done
    assert 0.2 < number(done, "floor") <= number(done, "end")
    assert number(done, "conflicting") == 32
    [finding] = conflicting_targets.in_experiment(done)
    assert finding.number("examples in conflict") == 32


def test_a_model_that_the_optimizer_does_not_hold_fails_and_the_rule_is_named(runner: Runner, folder: Path) -> None:
    loop = """
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))
for epoch in range(20):
    for x, y in loader: step(F.cross_entropy(model(x), y))
"""
    done = tried(runner, folder, loop)
    assert done.verdict == "failed", done
    assert "O02" in str(done.measures["explained_by"])
    finding = next(iter(in_experiment(done)))
    assert finding.place is not None
    assert finding.place.path == "train.py"
    assert "O02" in finding.fix.text


@pytest.mark.slow
def test_a_low_rate_is_not_a_failure(runner: Runner, folder: Path) -> None:
    loop = """
for group in optimizer.param_groups: group["lr"] = 1e-6
for x, y in loader: step(F.cross_entropy(model(x), y))
"""
    done = tried(runner, folder, loop)
    assert done.verdict == "undecided", done
    assert done.measures["slow"]
    assert not list(in_experiment(done))


@pytest.mark.slow
def test_an_infinite_rate_says_nothing_of_the_loop(runner: Runner, folder: Path) -> None:
    loop = """
for group in optimizer.param_groups: group["lr"] = float("inf")
for epoch in range(20):
    for x, y in loader: step(F.cross_entropy(model(x), y))
"""
    done = tried(runner, folder, loop)
    assert done.verdict == "undecided", done
    assert done.sentence == "Fed one batch, the loss became NaN or infinite after 1 step."
    assert not list(in_experiment(done))


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("print('nothing to train')", "No optimizer step"),
        ("for x, y in loader: step(F.cross_entropy(model(x), y)); break", "too few"),
        ("step(F.cross_entropy(model(x), labels)); raise ValueError('no more data')", "no more data"),
        ("import sys; sys.exit(3)", "No optimizer step"),
        ("this is no python", "SyntaxError"),
    ],
)
def test_odd_programs_are_undecided(runner: Runner, folder: Path, loop: str, said: str) -> None:
    done = tried(runner, folder, loop)
    assert done.verdict == "undecided"
    assert said in done.sentence


@pytest.mark.parametrize(
    ("values", "levels", "course"),
    [
        ([2.3 * 0.97**i for i in range(200)], Levels(0.0, 2.2, 32), "passed"),
        ([2.3 * 0.999**i for i in range(200)], Levels(0.0, 2.2, 32), "falling"),
        ([2.3 - 1e-6 * i for i in range(200)], Levels(0.0, 2.2, 32), "falling"),
        ([2.3] * 200, Levels(0.0, 2.2, 32), "stuck"),
        ([40 * 0.8**i + 2.2 + 0.01 * (i % 3) for i in range(200)], Levels(0.0, 2.2, 32), "stuck"),
        ([2.0 * 0.9**i + 0.5 for i in range(200)], Levels(0.5, 2.2, 32), "passed"),
        ([2.0 * 0.8**i + 0.7 + 0.01 * (i % 3) for i in range(200)], Levels(0.0, 2.2, 32), "between"),
        ([1 - 0.1 * i for i in range(200)], Levels(0.0, 0.9, 32), "below"),
        ([1 - 0.1 * i for i in range(200)], Levels(), "falling"),
        ([5.0 + 0.05 * i for i in range(200)], Levels(0.0, 4.0, 32), "broken"),
        ([2.3] * 100 + [None], Levels(0.0, 2.2, 32), "broken"),
        ([0.0] * 100, Levels(0.0, 0.0, 32), "passed"),
        ([1.0 * 0.9**i for i in range(200)], Levels(0.0, 1e-12, 32), "passed"),
        ([8e5 * 0.8**i + 0.95 + 0.01 * (i % 3) for i in range(200)], Levels(0.0, 0.9, 32, 0.9), "stuck"),
        ([2.3] * 5, Levels(0.0, 2.2, 32), "nothing"),
        ([], Levels(), "nothing"),
    ],
)
def test_what_a_curve_says(values: list[float | None], levels: Levels, course: str) -> None:
    assert read(curve(values), levels).course == course


def test_levels_of_a_loss_that_is_only_a_part_are_not_known() -> None:
    goal = {"loss": "mse_loss", "value": 0.5, "targets": 32, "floor": 0.1, "constant": 0.4}
    told = {"goals": {"first_step": 1, "first": [goal], "last_step": 3, "last": [0.2]}}
    assert levels_of(told, curve([1.0, 0.5, 0.3, 0.2])) == Levels(0.1, 0.4, 32)
    assert levels_of(told, curve([1.0, 0.125, 0.1, 0.05])) == Levels(0.025, 0.1, 32)
    assert levels_of(told, curve([1.0, 0.7, 0.5, 0.4])) == Levels(None, None, 32)
    assert levels_of({}, curve([1.0])) == Levels()


CREEPING = [0.809 + 0.0001 * (250 - step) + 0.7 * math.exp(-step / 10) for step in range(250)]


def test_a_loss_that_creeps_far_above_its_floor_does_not_pass() -> None:
    assert read(curve(CREEPING), Levels(floor=0.0, constant=1.6)).course == "falling"


def test_a_loss_that_will_be_there_in_as_many_steps_again_passes() -> None:
    falling = [1.6 * math.exp(-step / 120) for step in range(250)]
    assert read(curve(falling), Levels(floor=0.0, constant=1.6)).course == "passed"


def test_a_later_training_does_not_pass_for_the_first(runner: Runner, folder: Path) -> None:
    loop = """
def train(steps, rate):
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for i in range(steps):
        loss = F.cross_entropy(model(x[:32]), labels[:32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train(40, 1e-6)
train(300, 0.5)
"""
    done = tried(runner, folder, loop)
    assert done.verdict == "undecided", done
    assert number(done, "steps") == 40
    assert number(done, "end") > 1.3


def test_two_optimizers_that_step_on_one_backward_have_one_loss(runner: Runner, folder: Path) -> None:
    loop = """
encoder, decoder = nn.Linear(6, 64), nn.Linear(64, 4)
pair = [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (encoder, decoder)]
for i in range(150):
    rows = torch.randint(256, (32,))
    loss = F.cross_entropy(decoder(torch.relu(encoder(x[rows]))), labels[rows])
    for each in pair: each.zero_grad()
    loss.backward()
    for each in pair: each.step()
"""
    done = tried(runner, folder, loop)
    assert done.verdict == "passed", done
    assert number(done, "floor") == 0
    assert not done.caveats
