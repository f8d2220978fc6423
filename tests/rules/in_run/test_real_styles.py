"""Runs in the style of well-known public scripts: what a rule must say of them, and where it must be silent."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from fakes import make_record

from unstuck.events import ClassFact, Event, Gauges, LossCall, Place, TensorFact
from unstuck.judge import judge
from unstuck.record import read
from unstuck.rule import all_rules, find_rule
from unstuck.testing.runs import run_server

CLASSIFIER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.randn(2048, 64)
digits = (images @ torch.randn(64, 10)).argmax(1)
loader = DataLoader(TensorDataset(images, digits), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range({epochs}):
    for images, labels in loader:
        {prepare}
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

EVALUATED_IN_TRAIN_MODE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Normalize(nn.Module):
    def forward(self, image):
        return (image - 0.5) / 0.3

class Images(Dataset):
    def __init__(self):
        self.images, self.prepare = torch.rand(1600, 16), Normalize()
    def __len__(self):
        return len(self.images)
    def __getitem__(self, index):
        return self.prepare(self.images[index]), int(self.images[index, 0] > 0.5)

torch.manual_seed(0)
data = Images()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for images, labels in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        for images, labels in DataLoader(data, batch_size=1600):
            print(nn.functional.cross_entropy(model(images), labels, reduction="sum").item())
"""

LINEAR_REGRESSION = """
import torch
from torch import nn

x = torch.linspace(2, 11, 15).unsqueeze(1)
y = 0.25 * x + 0.8
model = nn.Linear(1, 1)
nn.init.constant_(model.weight, {weight})
nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(60):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MIXED_UP = "labels = labels[torch.randperm(len(labels))]"


def found(codes: list[str], script: str, folder: Path) -> list[str]:
    """What these rules say of a run of this script, the cause first."""
    (folder / "train.py").write_text(script, encoding="utf-8")
    run_server().run(str(folder), ["run", "--fail-on", "never", "train.py"])
    rules = [rule for code in codes if (rule := find_rule(code)) is not None]
    with contextlib.chdir(folder):
        verdict = judge(record=read(next((folder / ".unstuck/runs").iterdir())), rules=rules)
    assert not verdict.failures
    return [f"{diagnosis.lead.code} {diagnosis.lead.message}" for diagnosis in verdict.diagnoses]


def test_labels_mixed_up_against_their_inputs_are_learned_no_better_than_by_guessing(tmp_path: Path) -> None:
    messages = found(["R08"], CLASSIFIER.format(epochs=5, prepare=MIXED_UP), tmp_path)
    assert len(messages) == 1
    assert "no better than guessing" in messages[0]


@pytest.mark.parametrize(("epochs", "prepare"), [(5, "pass"), (2, MIXED_UP)], ids=["a run that learns", "too short"])
def test_a_run_that_learns_and_one_too_short_to_tell_are_no_guessing(epochs: int, prepare: str, tmp_path: Path) -> None:
    assert found(["R08"], CLASSIFIER.format(epochs=epochs, prepare=prepare), tmp_path) == []


@pytest.mark.parametrize(("losses_end", "said"), [(70, 1), (225, 0)], ids=["to the end", "early calls only"])
def test_calls_that_were_recorded_early_only_say_nothing_of_the_end(losses_end: int, said: int) -> None:
    """On a busy machine recorded steps are rare, and the loss of a run may fall after the last of them."""
    labels = TensorFact(
        shape=(32,), dtype="int64", low=0, high=1, classes=ClassFact(counts={0: 16, 1: 16}, distinct=2, total=32)
    )
    scores = TensorFact(shape=(32, 2), dtype="float32", low=-0.01, high=0.01, between=0.001, requires_grad=True)
    calls = [
        LossCall(
            step=step,
            loss="cross_entropy",
            place=Place("train.py", 9),
            input=scores,
            target=labels,
            output_requires_grad=True,
            value=0.69 + 0.001 * (step % 3),
            reduction="mean",
        )
        for step in range(71)
    ]
    flat = [Gauges(step=step, loss=0.69 + 0.001 * (step % 3)) for step in range(71)]
    falling = [Gauges(step=step, loss=0.69 * 0.98 ** (step - 70)) for step in range(71, losses_end)]
    record = make_record(*calls, *flat, *falling)
    rule = find_rule("R08")
    assert rule is not None
    assert len(judge(record=record, rules=[rule]).diagnoses) == said


def test_a_first_loss_far_above_a_guess_names_pixels_of_0_to_255(tmp_path: Path) -> None:
    pixels = "images = images.abs().mul(100).clamp(max=255)"
    (message,) = found(["R01", "R09"], CLASSIFIER.format(epochs=2, prepare=pixels), tmp_path)
    assert message.startswith("R01")
    assert message.endswith("to 255.")


TABLE = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(256, 5)
y = x @ torch.tensor([1.0, -2.0, 0.5, 0.3, 1.0])
x[:, 3] = x[:, 3] * 3e4 + 1e5
model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(200):
    rows = torch.randint(0, 256, (32,))
    loss = nn.functional.mse_loss(model(x[rows])[:, 0], y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_column_of_a_table_that_is_not_scaled_is_named(tmp_path: Path) -> None:
    messages = found(["R01", "R09"], TABLE, tmp_path)
    assert any("with column 3 about 1" in message and "the median column 1" in message for message in messages)


def test_inputs_that_are_large_and_do_no_harm_are_left_alone(tmp_path: Path) -> None:
    script = CLASSIFIER.replace("nn.Sequential(", "nn.Sequential(nn.BatchNorm1d(64), ")
    assert found(["R01", "R09"], script.format(epochs=2, prepare="images = images * 100"), tmp_path) == []


def test_an_evaluation_in_train_mode_is_seen_behind_a_transform_of_every_example(tmp_path: Path) -> None:
    messages = found(["O05"], EVALUATED_IN_TRAIN_MODE, tmp_path)
    assert messages == ["O05 Sequential was evaluated 2 times in train mode, and never in eval mode."]


def test_a_start_far_off_that_the_weights_are_to_blame_for_wants_no_bias(tmp_path: Path) -> None:
    assert found(["R02"], LINEAR_REGRESSION.format(weight=-1.0), tmp_path) == []


def test_what_a_rule_misses_in_a_run_has_words() -> None:
    wanted = {kind for rule in all_rules() if rule.run for kind in rule.needs}
    assert all(kind.ABSENT != Event.ABSENT for kind in wanted)
