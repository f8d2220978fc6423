"""A script that cannot train here, or never does: one sentence that says what is wrong and what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Unstuck = Callable[..., subprocess.CompletedProcess[str]]

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(steps):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
ASKS = "import sys, torch\nsteps = {}\nmodel, x = torch.nn.Linear(3, 1), torch.randn(8, 3)\n" + LOOP
ON_GPU = "import torch\nsteps = 20\nmodel, x = torch.nn.Linear(3, 1){0}, torch.randn(8, 3){0}\n" + LOOP
NO_INPUT = [
    ASKS.format("int(input('steps? '))"),
    pytest.param(ASKS.format("int(sys.stdin.readline())"), marks=pytest.mark.slow),
]
NO_GPU = [ON_GPU.format(".cuda()"), pytest.param(ON_GPU.format(".to('cuda')"), marks=pytest.mark.slow)]


def words_of(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


@pytest.mark.parametrize("text", NO_INPUT)
def test_a_script_that_asks_for_input(unstuck: Unstuck, text: str) -> None:
    Path("train.py").write_text(text)
    done = unstuck("run", "train.py")
    assert "The script asks for input at train.py:2, and standard input was empty." in words_of(done)
    assert done.returncode == 1
    done = unstuck("diagnose", "--quiet", "train.py")
    assert "The script asks for input at train.py:2, and a run that is repeated cannot be answered." in words_of(done)
    assert done.returncode == 2


@pytest.mark.parametrize("text", NO_GPU)
def test_a_script_that_asks_for_a_gpu_where_there_is_none(unstuck: Unstuck, text: str) -> None:
    Path("train.py").write_text(text)
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    done = unstuck("run", "train.py", **environment)
    assert "The script asks for a GPU at train.py:3, and torch has none to use here." in words_of(done)
    assert done.returncode == 1
    done = unstuck("diagnose", "--quiet", "train.py", **environment)
    assert "The script asks for a GPU at train.py:3" in words_of(done)
    assert "torch.cuda.is_available()" in words_of(done)


@pytest.mark.parametrize("text", ["import torch\ntorch.nn.Linear(3, 1)(torch.ones(1, 3))\n", "print('hello')\n"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_script_that_never_trains(unstuck: Unstuck, text: str, code: int) -> None:
    Path("train.py").write_text(f"{text}raise SystemExit({code})\n")
    done = unstuck("run", "train.py")
    assert "No training was seen: nothing called backward(), and no optimizer stepped." in words_of(done)
    assert "Nothing found" not in done.stderr
    assert done.returncode == code


def test_no_time(unstuck: Unstuck) -> None:
    Path("train.py").write_text("import time\ntime.sleep(30)\n")
    done = unstuck("diagnose", "--quiet", "--budget", "1", "train.py")
    assert "had not taken a training step when the budget was used up; give it more with --budget" in words_of(done)
    assert done.returncode == 2
