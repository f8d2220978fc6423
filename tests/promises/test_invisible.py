"""What a program can see of its own execution is the same under `python` and under `unstuck run`.

`docs/watching.md` lists what it could notice all the same, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("looking_around.py")


def output(folder: Path, *options: str) -> tuple[int, list[str], list[str]]:
    environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "UNSTUCK_RAISE": "1"}
    command = [sys.executable, *options, PROGRAM.name, "--lr", "0.1"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    folder = tmp_path_factory.mktemp("invisible")
    (folder / PROGRAM.name).write_text(PROGRAM.read_text())
    code, seen, errors = output(folder)
    assert code == 1
    uncaught = next(number for number, line in enumerate(seen) if line.startswith("excepthook"))
    assert "== forward" in seen[uncaught:], "it looks around once more at exit"
    for where in ("forward", "loss", "optimizer step", "lr_lambda", "backward of an autograd function", "a thread"):
        assert f"== {where}" in seen
    return folder, seen, errors


def test_a_program_sees_the_same(bare: tuple[Path, list[str], list[str]]):
    folder, seen, errors = bare
    code, watched, watched_errors = output(folder, "-m", "unstuck", "run", "--quiet")
    assert watched == seen
    assert (code, watched_errors) == (1, errors)
    assert list(folder.glob(".unstuck/runs/*/events.jsonl"))


@pytest.mark.slow
def test_a_program_measured_at_every_step_sees_the_same(bare: tuple[Path, list[str], list[str]]):
    folder, seen, _ = bare
    assert output(folder, "-m", "unstuck", "run", "--quiet", "--every", "1")[1] == seen
