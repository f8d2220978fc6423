"""One bad file never costs the others: trees composed of everything that can be wrong with a file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

NOT_UTF8 = os.fsdecode(b"n\xffame")
FORMATS = ("text", "concise", "json", "json-lines", "sarif", "github", "junit")
GUILTY = """import torch
from torch import nn
model = nn.Linear(8, 3)
criterion = nn.CrossEntropyLoss()
loss = criterion(torch.softmax(model(x), 1), y)
loss.backward()
"""


def text(raw: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())


def locked(path: Path) -> None:
    path.write_text("import torch\n")
    path.chmod(0)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200 * 2**20)


def far(path: Path) -> None:
    """A file whose path is longer than any path may be."""
    folder = os.open(".", os.O_RDONLY)
    for _ in range(25):
        os.makedirs(f"/proc/self/fd/{folder}/{'p' * 200}", exist_ok=True)
        below = os.open("p" * 200, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(os.open("far.py", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)


BAD: dict[str, Callable[[Path], object]] = {
    "syntax": text("def f(:\n"),
    "null bytes": text(b"x = 1\0\n"),
    "unknown encoding": text(b"# coding: nonsense\nx = 1\n"),
    "wrong encoding": text(b"# coding: ascii\nx = '\xff'\n"),
    "minus signs": text("x = " + "-" * 100_000 + "1\n"),
    "brackets": text("x = " + "[" * 5_000 + "]" * 5_000 + "\n"),
    "elifs": text("if a:\n    pass\n" + "elif b:\n    pass\n" * 20_000),
    "attributes": text("import torch\nloss.backward()\nx = a" + ".b" * 20_000 + "\n"),
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "locked": locked,
    "too large": sparse,
}
HARMLESS: dict[str, Callable[[Path], object]] = {
    "empty": text(""),
    "a long line": text("import torch\nx = '" + "a" * 1_000_000 + "'\nloss.backward()\n"),
    "a folder": lambda path: path.mkdir(),
    "a folder in itself": lambda path: path.symlink_to("."),
    "a folder above": lambda path: path.symlink_to(".."),
}
ODD_NAMES = ["plain", NOT_UTF8, "new\nline", "\x1b[31mred", "-", "a b", "é", "a" * 240, "%s{}", "'\"`$(x)"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path / "tree")
    monkeypatch.delenv("UNSTUCK_RAISE", raising=False)
    return tmp_path / "tree"


def lint(*words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "unstuck", "lint", *words]
    return subprocess.run(command, capture_output=True, timeout=120)


def check(wanted: str, done: subprocess.CompletedProcess[bytes]) -> None:
    shown = done.stdout.decode()  # whatever the names of files are
    assert b"bug in unstuck" not in done.stderr
    assert "could not be judged" not in shown
    assert "\x1b" not in shown or wanted != "text"
    if wanted in ("json", "sarif"):
        json.loads(shown)
    elif wanted == "json-lines":
        assert all(json.loads(line) for line in shown.splitlines())
    elif wanted == "junit":
        ElementTree.fromstring(shown)
    assert "O12" in shown


def compose(chance: random.Random) -> int:
    """A tree of bad, harmless and guilty files; says how many are bad."""
    bad = 0
    for number in range(chance.randint(4, 10)):
        folder = Path(chance.choice(["", "sub", NOT_UTF8]))
        folder.mkdir(exist_ok=True)
        path = folder / f"{number}{chance.choice(ODD_NAMES)}.py"
        kind = chance.choice([*BAD, *HARMLESS])
        (BAD | HARMLESS)[kind](path)
        bad += kind in BAD and not (kind == "locked" and os.geteuid() == 0)
    if chance.random() < 0.3:
        far(Path())
        bad += 1
    for name in ("guilty", NOT_UTF8):
        Path(f"{name}.py").write_text(GUILTY)
    return bad


@pytest.mark.parametrize("seed", range(7))
def test_a_random_tree_is_judged_in_every_format(tree: Path, seed: int) -> None:
    bad = compose(random.Random(seed))
    wanted = FORMATS[seed]
    done = lint(".", "--format", wanted, "--select", "O12")
    assert done.returncode == 1, done.stderr
    check(wanted, done)
    if wanted != "text":
        assert len(done.stderr.splitlines()) == bad, done.stderr.decode()


@pytest.mark.parametrize("wanted", FORMATS)
def test_a_name_that_is_not_utf8(tree: Path, wanted: str) -> None:
    Path(f"{NOT_UTF8}.py").write_text(GUILTY)
    Path(f"bad{NOT_UTF8}.py").write_text("def f(:\n")
    done = lint(".", "--format", wanted, "--select", "O12", "--jobs", "1")
    assert done.returncode == 1
    check(wanted, done)


@pytest.mark.parametrize("name", [".gitignore", "pyproject.toml", ".git/info/exclude"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "null bytes"])
def test_settings_and_ignore_files_that_are_none(tree: Path, name: str, kind: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    BAD[kind](Path(name))
    Path("guilty.py").write_text(GUILTY)
    done = lint(".", "--format", "concise", "--select", "O12")
    assert done.returncode == 1, done.stderr
    check("concise", done)


def test_a_folder_that_vanishes_meanwhile(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds files that are gone when they are read."""
    import shutil

    from unstuck.lint import engine
    from unstuck.lint.settings import Settings

    Path("gone").mkdir()
    Path("gone/script.py").write_text(GUILTY)
    Path("guilty.py").write_text(GUILTY)
    find = engine.find_files

    def find_and_remove(*given: object) -> list[Path]:
        found = find(*given)  # type: ignore[arg-type]
        shutil.rmtree("gone")
        return found

    monkeypatch.setattr(engine, "find_files", find_and_remove)
    result = engine.lint(["."], Settings())
    assert result.files == 1
    (problem,) = result.problems
    assert "gone/script.py" in problem.message
