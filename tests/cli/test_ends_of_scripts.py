"""How a script ended is said, and changes the exit code; streams that are closed or full change nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = """
import os, signal, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(17):
    optimizer.zero_grad()
    model(torch.randn(8, 3)).pow(2).mean().backward()
    optimizer.step()
print("trained")
"""
UNSTUCK = [sys.executable, "-m", "unstuck"]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "and was killed by SIGSEGV"),
        pytest.param("sys.exit(3)", "and exited with code 3", marks=pytest.mark.slow),
    ],
)
def test_a_diagnosis_says_how_the_script_failed(end: str, words: str) -> None:
    Path("train.py").write_text(TRAINING + end)
    command = [*UNSTUCK, "diagnose", "--quiet", "--budget", "20s", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert words in " ".join(done.stdout.split())
    assert done.returncode == 1


@pytest.mark.parametrize("closed", ["2>&-", pytest.param(">&-", marks=pytest.mark.slow)])
def test_streams_that_are_closed_do_not_keep_a_script_from_training(closed: str) -> None:
    Path("train.py").write_text(TRAINING + "open('model', 'w').close()\n")
    command = f"'{sys.executable}' -m unstuck run --fail-on never train.py {closed}"
    bare = f"'{sys.executable}' train.py {closed}"
    codes = [subprocess.run(each, shell=True, capture_output=True).returncode for each in (bare, command)]
    assert Path("model").exists()
    assert codes[0] == codes[1]


def test_an_output_that_is_full_is_no_bug_of_ours() -> None:
    done = subprocess.run(f"'{sys.executable}' -m unstuck rules >/dev/full", shell=True, capture_output=True, text=True)
    assert "bug" not in done.stderr
    assert "no space left" in done.stderr
    assert done.returncode == 2


@pytest.mark.slow
def test_a_diagnosis_can_be_looked_at_again() -> None:
    Path("train.py").write_text(TRAINING)
    command = [*UNSTUCK, "diagnose", "--quiet", "--budget", "20s", "train.py"]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode in (0, 1)
    (run,) = Path(".unstuck/runs").iterdir()
    for words in ([], [str(run)]):
        done = subprocess.run([*UNSTUCK, "report", *words], capture_output=True, text=True, timeout=60)
        assert "this is its watched run" in done.stderr
        assert "17 optimizer steps" in done.stdout
