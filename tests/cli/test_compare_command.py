"""`unstuck compare`: two versions of a script, the first tensor that differs, and which of them is better."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Unstuck

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, :4].sum(1) > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(10):
    for begin in range(0, 256, 32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[begin : begin + 32]), y[begin : begin + 32])
        loss.backward()
        optimizer.step()
print(loss.item())
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)


def compared(unstuck: Unstuck, old: str, new: str) -> tuple[int, dict[str, object], str]:
    done = unstuck("compare", "--json", "--quiet", old, new)
    experiment = json.loads(done.stdout)["experiment"]
    return done.returncode, experiment["measures"], experiment["sentence"]


def test_a_change_in_the_model_is_found_at_its_module(unstuck: Unstuck) -> None:
    Path("new.py").write_text(SCRIPT.replace("return self.last(h)", "return self.last(h).softmax(0)"))
    code, measures, sentence = compared(unstuck, "old.py", "new.py")
    assert code == 1
    assert measures["what"] == "output Net"
    assert measures["new_lines"] == "18"
    assert "new.py is worse with every seed" in sentence


@pytest.mark.slow
def test_a_later_change_is_found_at_its_step_and_a_rate_by_its_name(unstuck: Unstuck) -> None:
    late = SCRIPT.replace(
        "        optimizer.zero_grad()", "        if epoch == 3: x = x * 1.5\n        optimizer.zero_grad()"
    )
    Path("late.py").write_text(late)
    _, measures, _ = compared(unstuck, "old.py", "late.py")
    assert (measures["first_difference"], measures["what"]) == (24, "input x of Net")
    Path("rate.py").write_text(SCRIPT.replace("lr=1e-2", "lr=1e-5"))
    _, measures, sentence = compared(unstuck, "old.py", "rate.py")
    assert str(measures["what"]).startswith("weight after the step")
    assert "Adam(lr=0.01" in sentence
    assert "Adam(lr=1e-05" in sentence


@pytest.mark.slow
def test_a_version_of_git_that_is_the_same(unstuck: Unstuck) -> None:
    for words in (("init", "-q"), ("add", "old.py"), ("-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x")):
        subprocess.run(["git", *words], check=True)
    Path("old.py").write_text(SCRIPT.replace("print(loss.item())", "print('the loss is', loss.item())"))
    code, measures, sentence = compared(unstuck, "HEAD:old.py", "old.py")
    assert code == 0
    assert measures["first_difference"] is None
    assert sentence == "Both compute the same to the last bit in all 80 steps."


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("gone.py", "there is no file gone.py"),
        ("HEAD:old.py", "git says:"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(unstuck: Unstuck, old: str, said: str) -> None:
    done = unstuck("compare", old, "old.py")
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.slow
def test_versions_without_a_backward_are_not_called_the_same(unstuck: Unstuck) -> None:
    by_hand = SCRIPT.replace("loss.backward()", "grads = torch.autograd.grad(loss, list(model.parameters()))").replace(
        "optimizer.step()", "[p.data.sub_(0.1 * g) for p, g in zip(model.parameters(), grads)]"
    )
    by_hand = by_hand.replace("optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)\n", "")
    Path("by_hand.py").write_text(by_hand.replace("        optimizer.zero_grad()\n", ""))
    done = unstuck("compare", "--quiet", "by_hand.py", "by_hand.py")
    assert "the same" not in done.stdout


def test_two_scripts_are_needed(unstuck: Unstuck) -> None:
    done = unstuck("compare", "old.py")
    assert done.returncode == 2
    assert "name two scripts" in done.stderr
