"""`assert_trains` and the pytest plugin: a failing test shows the report, and not our own frames."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import unstuck

torch = pytest.importorskip("torch")
nn = torch.nn

ROOT = Path(__file__).parents[2]
PLUGIN = "unstuck.integrations.pytest_plugin"
TESTS = """
import torch, unstuck
from torch import nn

torch.manual_seed(0)
batch = (torch.randn(8, 4), torch.randint(3, (8,)))
right = nn.Linear(4, 3)
wrong = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
unused = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
unused.forward = lambda x: unused[0](x)

def test_right(unstuck_check):
    assert unstuck_check(right, nn.CrossEntropyLoss(), torch.optim.SGD(right.parameters(), lr=0.1), batch).ok

def test_wrong(unstuck_check):
    unstuck_check(wrong, nn.CrossEntropyLoss(), None, batch)

def test_never(unstuck_check):
    assert not unstuck_check(wrong, nn.CrossEntropyLoss(), None, batch, fail_on="never").ok

def test_advice(unstuck_check):
    unstuck_check(unused, nn.CrossEntropyLoss(), None, batch)

def test_advice_too(unstuck_check):
    unstuck_check(unused, nn.CrossEntropyLoss(), None, batch, fail_on="advice")

def test_function():
    unstuck.assert_trains(wrong, nn.CrossEntropyLoss(), batch)
"""


def test_assert_trains_is_silent_on_a_right_model() -> None:
    model = nn.Linear(4, 3)
    unstuck.assert_trains(model, nn.CrossEntropyLoss(), (torch.randn(8, 4), torch.randint(3, (8,))))


def test_assert_trains_raises_with_the_report() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1))
    with pytest.raises(AssertionError, match="Sequential would not train as it should:\n\nerror O12") as raised:
        unstuck.assert_trains(model, nn.CrossEntropyLoss(), (torch.randn(8, 4), torch.randint(3, (8,))))
    assert "Not checked" not in str(raised.value)


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_failures_are_readable(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TESTS, encoding="utf-8")
    done = run_pytest(tmp_path, "test_training.py")
    assert "3 failed, 3 passed" in done.stdout, done.stdout
    assert "error O12 double-softmax: " in done.stdout
    assert "unstuck check of Sequential" in done.stdout
    assert "advice (likely) O03" in done.stdout
    for ours in ("preflight.py", "pytest_plugin.py", "Not checked"):
        assert ours not in done.stdout
    line = TESTS[: TESTS.index("unstuck.assert_trains")].count("\n") + 1
    assert f"test_training.py:{line}: AssertionError" in done.stdout


def test_the_fixture_is_listed_with_what_it_is(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--fixtures")
    assert "unstuck_check" in done.stdout
    assert "fails the test" in done.stdout


def test_it_is_registered_and_costs_nothing_to_load() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["pytest11"] == {"unstuck": PLUGIN}
    program = f"import {PLUGIN}, sys; print(*{{'torch', 'msgspec', 'rich', 'numpy'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
