"""`unstuck diagnose`, `prove` and the single experiments as a user types them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Unstuck = Callable[..., subprocess.CompletedProcess[str]]

WIPED = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(256, 8)
targets = inputs.sum(1, keepdim=True)
for step in range(args.steps):
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
torch.save(model.state_dict(), "last.pt")
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nothing.py",), "there is no file nothing.py"),
        (("--budget", "0", "train.py"), "'0' is not a time above 0; write it as 90s, 5m or 1h"),
        (("--budget", "abc", "train.py"), "'abc' is not a time above 0; write it as 90s, 5m or 1h"),
        ((), "name a script, such as: unstuck"),
        (("--output", "no/such/folder.txt", "train.py"), "its directory does not exist"),
    ],
)
@pytest.mark.parametrize("verb", ["diagnose", "overfit"])
def test_wrong_usage_is_one_sentence_and_nothing_is_run(
    unstuck: Unstuck, verb: str, words: tuple[str, ...], sentence: str
) -> None:
    Path("train.py").write_text("raise SystemExit('was run')")
    done = unstuck(verb, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(".unstuck").exists()


@pytest.mark.parametrize(
    ("verb", "text", "sentence", "shown"),
    [
        ("diagnose", "def f(:", "crashed before its first training step", "SyntaxError"),
        ("lr", "print('hello')", "ended without a training step", "hello"),
        pytest.param("overfit", "import nil", "crashed before its first training step", "nil", marks=pytest.mark.slow),
        pytest.param(
            "prove",
            "print('give --data'); raise SystemExit(2)",
            "exited with code 2 before its first training step",
            "give --data",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_script_that_does_not_train_is_told_with_what_it_printed(
    unstuck: Unstuck, verb: str, text: str, sentence: str, shown: str
) -> None:
    Path("train.py").write_text(text)
    done = unstuck(verb, "--quiet", "train.py")
    assert done.returncode == 2
    assert done.stdout == ""
    first, *rest = done.stderr.splitlines()
    assert first == f"unstuck: train.py {first.partition('train.py ')[2]}"
    assert sentence in first
    assert shown in "\n".join(rest)
    assert "stage" not in done.stderr


@pytest.mark.parametrize("words", [pytest.param(("folder",), marks=pytest.mark.slow), ("-m", "no_such_module")])
def test_what_is_no_program_is_refused(unstuck: Unstuck, words: tuple[str, ...]) -> None:
    Path("folder").mkdir()
    done = unstuck("independence", "--quiet", *words)
    assert done.returncode == 2
    assert f"unstuck: {words[-1]} could not be run." in done.stderr


def test_the_cause_is_proven_and_nothing_of_the_users_is_written(unstuck: Unstuck) -> None:
    Path("train.py").write_text(WIPED)
    done = unstuck("diagnose", "--json", "--html", "page.html", "--budget", "60s", "train.py", "--steps", "120")
    assert done.returncode == 1, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["principal"] == "O04"
    assert report["diagnoses"][0]["verify"]["command"].startswith("unstuck run train.py")
    proof = report["proofs"][0]
    assert (proof["code"], proof["verdict"]) == ("O04", "confirmed")
    assert {pair["seed"] for pair in proof["pairs"]} >= {0}
    assert proof["steps"] <= 120
    assert "trying the remedy of O04" in done.stderr
    assert "O04" in Path("page.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path().iterdir()) == [".unstuck", "page.html", "train.py"]
    assert not list(Path(".unstuck").rglob("layer"))


def test_a_script_that_crashes_in_its_training_is_told_where_and_why(unstuck: Unstuck) -> None:
    Path("train.py").write_text(WIPED.replace("    optimizer.step()", "    if step == 3: raise ValueError('bad day')"))
    done = unstuck("prove", "--quiet", "--budget", "30s", "train.py")
    assert "crashed at train.py:17" in done.stdout.replace("\n", " ")
    assert "ValueError: bad day" in done.stdout.replace("\n", " ")


@pytest.mark.slow
def test_an_option_of_ours_that_the_script_was_given_is_pointed_at(unstuck: Unstuck) -> None:
    Path("train.py").write_text(WIPED)
    for verb in ("diagnose", "overfit"):
        done = unstuck(verb, "--quiet", "train.py", "--budget=3m")
        assert done.returncode == 2
        assert "train.py exited with code 2 before its first training step" in done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert (
            last == "--budget comes after train.py, so it went to your script. Put unstuck's options before the script."
        )
