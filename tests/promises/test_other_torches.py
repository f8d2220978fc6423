"""A torch nobody tried unstuck with, or that lacks what it uses: the script runs as ever, and one line says so."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck import torches

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "unstuck"
INTERNALS = PACKAGE / "capture" / "torch_hooks" / "internals.py"
LACKING = """\
import importlib.util, os, sys

class Finder:
    \"\"\"Takes names out of torch as soon as it is imported; `while we are imported` puts them back afterwards.\"\"\"

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(Finder)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, Finder)
        load = spec.loader.exec_module

        def load_less(torch):
            load(torch)
            import torch.utils.data
            taken = []
            for path in os.environ["LACKS"].split():
                owner = torch
                *way, last = path.split(".")
                for part in way:
                    owner = getattr(owner, part, None)
                if hasattr(owner, last):  # not in every torch
                    taken.append((owner, last, getattr(owner, last)))
                    delattr(owner, last)
            if "GIVEN_BACK" in os.environ:
                import unstuck.capture.torch_hooks.attach
                for owner, last, value in taken:
                    setattr(owner, last, value)

        spec.loader.exec_module = load_less
        return spec

sys.meta_path.insert(0, Finder)
"""
SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
rows = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
loader = torch.utils.data.DataLoader(rows, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(15):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x).softmax(1), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
print(loss.item(), model(x).sum().item())
raise SystemExit(3)
"""


def private_names() -> Iterator[str]:
    """The names that `internals.py` looks for in torch."""
    for node in ast.walk(ast.parse(INTERNALS.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_named" and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)


NAMES = [*private_names(), "cuda._initialized", "_C._dynamo.eval_frame.set_code_exec_strategy"]
PUBLIC = ["amp.GradScaler", "optim.lr_scheduler.LRScheduler", "nn.modules.module._has_any_global_hook"]
"""Of which at least the first two leave nothing to watch."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A python program in this folder, with errors of ours swallowed as they are for a user."""
    variables = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
    found = os.pathsep.join(filter(None, (str(folder), variables.get("PYTHONPATH"))))
    variables |= {"PYTHONPATH": found, "COLUMNS": "200", "LACKS": "", **environment}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def same_without(folder: Path, names: str, **environment: str) -> str:
    """The script prints and returns what it does without us; the report."""
    alone = run(folder, "train.py", LACKS=names, **environment)
    watched = run(folder, "-m", "unstuck", "run", "train.py", LACKS=names, **environment)
    assert (watched.returncode, watched.stdout) == (alone.returncode, alone.stdout)
    assert "unstuck: this is a bug" not in watched.stderr
    return watched.stderr


@pytest.mark.slow
def test_everything_private_is_missing_at_once(folder: Path) -> None:
    # One of them holds others, and without another nothing at all may be watched.
    names = [name for name in NAMES if name not in ("_C._dynamo.eval_frame", "_C.DisableTorchFunction")]
    report = " ".join(same_without(folder, " ".join(names), GIVEN_BACK="1").split())
    assert "has no torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state, torch._C._func" in report
    assert "train.py exited after 60 optimizer steps" in report
    assert "error O12 double-softmax" in report
    assert "(1 error" in report


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_private_name_is_missing(folder: Path, name: str) -> None:
    report = same_without(folder, name, GIVEN_BACK="1")
    assert "train.py exited after 60 optimizer steps" in report
    assert "error O12 double-softmax" in report
    assert "(1 error" in report
    assert "unstuck failed" not in report


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *PUBLIC])
def test_a_name_is_gone_for_torch_as_well(folder: Path, name: str) -> None:
    """Without some of them torch itself fails, and then the script ends as it does without us."""
    same_without(folder, name)


@pytest.mark.slow
def test_a_torch_that_cannot_be_watched_is_not(folder: Path) -> None:
    report = same_without(folder, PUBLIC[0])
    assert "unstuck failed while watching the import of torch" in report


@pytest.mark.slow
def test_a_torch_that_no_experiment_works_with_is_one_line(folder: Path) -> None:
    done = run(folder, "-m", "unstuck", "diagnose", "--quiet", "train.py", LACKS=PUBLIC[0])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "unstuck: experiments do not work with this torch (ImportError: " in done.stderr


def pretend(folder: Path, version: str) -> None:
    described = folder / f"torch-{version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


@pytest.mark.parametrize("version", ["99.1.0a0+git1234", pytest.param("2.3.1", marks=pytest.mark.slow)])
def test_an_untried_torch_is_one_line(folder: Path, version: str) -> None:
    pretend(folder, version)
    (folder / "train.py").write_text("print('trained')\nraise SystemExit(3)\n")
    done = run(folder, "-m", "unstuck", "run", "train.py")
    assert (done.returncode, done.stdout) == (3, "trained\n")
    assert done.stderr.count(f"unstuck: torch {version} is not one that unstuck was tested with (2.4 to ") == 1
    for words in (("--quiet",), ("--format", "json")):
        done = run(folder, "-m", "unstuck", "run", *words, "train.py")
        assert "was tested with" not in done.stderr


def test_an_untried_torch_is_one_line_in_a_diagnosis(folder: Path) -> None:
    pretend(folder, "99.0.0")
    (folder / "train.py").write_text("print('nothing to train')\n")
    done = run(folder, "-m", "unstuck", "diagnose", "train.py")
    assert done.returncode == 2
    assert done.stderr.count("unstuck: torch 99.0.0 is not one that unstuck was tested with") == 1


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0+cpu", "2.15.3", "", "unknown", "2"])
def test_nothing_is_said_of_others(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torches, "installed", lambda: version)
    assert torches.untried() == ""


def test_the_oldest_is_the_one_that_is_required() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"]
    oldest = re.search(r"torch>=([\d.]+)", " ".join(extras))
    assert oldest
    assert oldest[1] == ".".join(map(str, torches.OLDEST))


def test_private_names_stand_in_one_place() -> None:
    """What torch may drop at any time is asked for where it may be missing."""
    private = re.compile(r"\btorch\.(\w+\.)*_[a-z]")
    folders = [PACKAGE / name for name in ("capture", "check", "experiments", "trials", "diagnose", "watch")]
    guilty = [
        f"{file.name}: {ast.unparse(node)}"
        for folder in folders
        for file in folder.rglob("*.py")
        if file != INTERNALS
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and private.match(ast.unparse(node))
    ]
    assert guilty == []
