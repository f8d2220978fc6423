"""`unstuck run --replay-nonfinite`: a second run that looks closely where the first one broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.events import NonFinite
from unstuck.record import Record, read
from unstuck.testing.runs import OUTPUT, run_server

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)


class Scale(nn.Module):
    factor = 1.0

    def forward(self, x):
        return x * self.factor


scale = Scale()
model = nn.Sequential(nn.Linear(4, 5), scale, nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(140):
    scale.factor = float("inf") if step == 133 else 1.0
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, *options: str) -> tuple[int, str]:
    code = run_server().run(str(folder), ["run", "--fail-on", "never", *options, "train.py"])
    return code, (folder / OUTPUT).read_text()


def records(folder: Path) -> list[Record]:
    runs = sorted((folder / ".unstuck" / "runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
    return [read(run) for run in runs]


def test_the_second_run_names_the_module(folder):
    assert run(folder)[0] == 0
    code, output = run(folder, "--replay-nonfinite")
    assert code == 0
    closer = next(records(folder)[-1].of(NonFinite))
    assert (closer.step, closer.name, closer.kind, closer.until) == (133, "1", "Scale", "")
    assert "The output of 1 (Scale) became infinite at step 134" in output


def test_there_must_be_a_run_that_broke(folder):
    code, output = run(folder, "--replay-nonfinite")
    assert code == 2
    assert "there is no run of train.py on record here" in output
    (folder / "train.py").write_text(SCRIPT.replace("step == 133", "step < 0"))
    run(folder)
    code, output = run(folder, "--replay-nonfinite")
    assert code == 2
    assert "met no NaN or infinity" in output


def test_a_replay_that_meets_nothing_says_so(folder):
    assert "--replay-nonfinite looked" not in run(folder)[1]
    (folder / "train.py").write_text(SCRIPT.replace("step == 133", "step < 0"))
    code, output = run(folder, "--replay-nonfinite")
    assert code == 0
    assert output.count("--replay-nonfinite looked at every module around step 134, and this time no value") == 1
    assert "--replay-nonfinite looked" not in run(folder, "--quiet")[1]
