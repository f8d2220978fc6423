"""The cache: never a stale answer, whatever was edited, broken or removed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.lint.conftest import PROJECT, write
from unstuck.findings.result import Result
from unstuck.lint import cache as cache_module, engine
from unstuck.lint.settings import Settings
from unstuck.report.formats import json


def seen(result: Result) -> str:
    return json.render(result)


def cached(*paths: str) -> str:
    return seen(engine.lint(paths or ["."], Settings(), cache=True))


def fresh(*paths: str) -> str:
    return seen(engine.lint(paths or ["."], Settings()))


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on only the cache may answer."""

    def refuse(*_: object) -> None:
        raise AssertionError("a file was read that the cache should have known")

    monkeypatch.setattr("unstuck.lint.outcome.outcome_of", refuse)


def test_the_second_run_reads_nothing(project: Path, request: pytest.FixtureRequest) -> None:
    first = cached()
    assert "double-softmax" in first
    request.getfixturevalue("no_reading")
    assert cached() == first


EDITS = [
    ("layers/head.py", ".softmax(1)", ""),
    ("layers/head.py", ".softmax(1)", ".softmax(1)  # unstuck: ignore[O12]"),
    ("losses.py", "F.cross_entropy(scores, labels)", "F.nll_loss(scores, labels)"),
    ("model.py", "Net(Head)", "Net(nn.Module)"),
    ("model.py", "from layers", "from .layers"),
    ("train.py", "optimizer.zero_grad()", "pass"),
    ("train.py", "loss.backward()", "loss.backward("),
    ("train.py", "import torch\n", "import torch\n\n"),
    ("layers/head.py", None, None),
    ("layers/__init__.py", "", "class Head: pass\n"),
    ("model/__init__.py", None, "class Net: pass\n"),
    ("layers.py", None, "class Head: pass\n"),
    ("layers/losses.py", None, "def compute(a, b): pass\n"),
    ("losses/__init__.py", None, "def compute(a, b): return 1\n"),
]


def change(name: str, old: str | None, new: str | None) -> None:
    path = Path(name)
    if new is None:
        path.unlink(missing_ok=True)
    elif old is None:
        write({name: new})
    elif path.exists():
        path.write_text(path.read_text().replace(old, new) if old else new)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(EDITS), min_size=1, max_size=5), st.booleans())
def test_an_edit_of_any_file_is_seen(edits: list[tuple[str, str | None, str | None]], whole: bool) -> None:
    paths = [] if whole else ["train.py"]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write(PROJECT)
        assert cached(*paths) == fresh(*paths)
        for edit in edits:
            change(*edit)
            assert cached(*paths) == fresh(*paths)


def test_a_module_that_appears_where_one_was_missing_is_seen(project: Path) -> None:
    shutil.rmtree("layers")
    assert "double-softmax" not in cached("train.py")
    write({name: PROJECT[name] for name in ("layers/__init__.py", "layers/head.py")})
    assert "double-softmax" in cached("train.py")


def test_a_nearer_module_takes_the_place_of_a_farther_one(project: Path) -> None:
    write({"app/train.py": PROJECT["train.py"]})
    assert "double-softmax" in cached("app/train.py")
    write({"app/losses.py": "def compute(a, b):\n    return ((a - b) ** 2).mean()\n"})
    assert "double-softmax" not in cached("app/train.py")


def test_every_selection_has_its_own_answers(project: Path) -> None:
    assert "double-softmax" in cached()
    only = Settings(select=("O04",))
    assert seen(engine.lint(["."], only, cache=True)) == seen(engine.lint(["."], only))
    assert "double-softmax" in cached()


def test_another_folder_spells_its_paths_itself(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached("layers/head.py", "train.py")
    monkeypatch.chdir("layers")
    assert cached("head.py", "../train.py") == fresh("head.py", "../train.py")


def entries() -> list[Path]:
    return sorted(Path(".unstuck/cache").iterdir())


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "noise", "folder"])
def test_a_damaged_entry_is_as_good_as_none(project: Path, damage: str) -> None:
    whole = cached()
    for entry in entries():
        raw = bytearray(entry.read_bytes())
        if damage == "folder":
            entry.unlink()
            entry.mkdir()
            continue
        if damage == "flip":
            raw[random.Random(0).randrange(len(raw))] ^= 1
        entry.write_bytes({"cut": raw[:-3], "empty": b"", "noise": os.urandom(60)}.get(damage, bytes(raw)))
    assert cached() == whole == cached()


def test_an_unreadable_file_is_told_each_time(project: Path) -> None:
    Path("odd.py").write_bytes(b"\0")
    Path("bad.py").write_text("def f(:\n")
    assert cached() == cached() == fresh()
    assert "odd.py is not text" in cached()


def test_the_number_of_entries_is_bounded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MOST_ENTRIES", 12)
    for number in range(20):
        write({f"script{number}.py": "import torch\n"})
        assert cached() == fresh()
        assert len(entries()) <= 12


def test_where_it_lies(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached()
    assert len(entries()) == len(PROJECT)
    assert Path(".unstuck/.gitignore").read_text() == "*\n"
    shutil.rmtree(".unstuck")
    Path(".unstuck").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "elsewhere"))
    assert cached() == fresh()
    assert len(list(Path("elsewhere/unstuck/cache").iterdir())) == len(PROJECT)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert cached() == fresh()


def test_a_user_without_a_home(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number which no account has: the cache of the project serves, or none."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 7)
    with pytest.raises(RuntimeError):
        Path.home()
    assert cached() == fresh()
    assert len(entries()) == len(PROJECT)
    shutil.rmtree(".unstuck")
    Path(".unstuck").write_text("in the way")
    assert cached() == fresh()
    assert not list(Path().glob("~*"))


def test_two_processes_at_once(project: Path) -> None:
    for number in range(60):
        write({f"script{number}.py": PROJECT["train.py"] + "# more\n" * 100})
    command = [sys.executable, "-m", "unstuck", "lint", ".", "--statistics", "--select", "O12", "--jobs", "1"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate(timeout=120)[0] for process in running}
    assert said == {"1  O12  error    double-softmax\n1 finding in 65 files\n"}
    assert len(entries()) == 65
    assert not [entry for entry in entries() if entry.suffix == ".part"]


def test_an_unchanged_project_is_five_times_faster(project: Path) -> None:
    body = "".join(f"    h{n} = torch.relu(x + {n})\n" for n in range(400))
    for number in range(30):
        write({f"script{number}.py": PROJECT["train.py"].replace("    loss = ", body + "    loss = ")})
    engine.lint(["model.py"], Settings())  # rules are loaded

    def seconds() -> float:
        started = sum(os.times()[:4])  # with the processes that judge
        cached()
        return sum(os.times()[:4]) - started

    first = seconds()
    assert min(seconds() for _ in range(3)) < first / 5
