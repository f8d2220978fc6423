"""What is linted: stdin, folders with a `.gitignore`, and files and folders that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unstuck import cli

Capture = pytest.CaptureFixture[str]
BROKEN = """\
import torch
from torch import nn
import torch.nn.functional as F

model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    loss = F.cross_entropy(F.softmax(model(x), 1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NET = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x).softmax(1)
"""


def lint_stdin(text: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "unstuck", "lint", "-", *words]
    return subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("text", [BROKEN, "\ufeff" + BROKEN, BROKEN.replace("\n", "\r\n")])
def test_stdin(text: str) -> None:
    done = lint_stdin(text.encode())
    assert done.returncode == 1
    assert b" --> <stdin>:9:" in done.stdout
    assert b"9 |     loss = F.cross_entropy(F.softmax(model(x), 1), y)" in done.stdout
    assert done.stderr == b""


def test_stdin_finds_its_imports_beside_its_name() -> None:
    Path("src").mkdir()
    Path("src/net.py").write_text(NET)
    text = BROKEN.replace("nn.Linear(8, 3)", "Net()").replace(
        "import torch\n", "import torch\nfrom net import Net\n", 1
    )
    text = text.replace("F.softmax(model(x), 1)", "model(x)")
    assert lint_stdin(text.encode()).returncode == 0
    done = lint_stdin(text.encode(), "--stdin-filename", "src/train.py")
    assert done.returncode == 1
    assert b" --> src/net.py:10:" in done.stdout


def test_stdin_is_shown_and_not_the_file_of_its_name() -> None:
    Path("train.py").write_text("\n" * 30)
    done = lint_stdin(BROKEN.encode(), "--stdin-filename", "train.py")
    assert b"9 |     loss = F.cross_entropy(F.softmax(model(x), 1), y)" in done.stdout


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [(b"\0", b"is not text"), (b"x = '\xff'", b"cannot be decoded"), (b"print 'a'", b"is not valid Python")],
)
def test_stdin_that_is_no_python(raw: bytes, sentence: bytes) -> None:
    done = lint_stdin(raw, "--stdin-filename", "train.py")
    assert done.returncode == 2
    assert sentence in done.stdout + done.stderr


def files_found(capsys: Capture, *words: str) -> int:
    cli.main(["lint", "--statistics", *words])
    return int(capsys.readouterr().out.split(" in ")[-1].split()[0])


@pytest.mark.parametrize("in_repository", [True, False])
def test_gitignore(in_repository: bool, capsys: Capture) -> None:
    if in_repository:
        subprocess.run(["git", "init", "-q", "."], check=True)
    for name in ("kept.py", "out.py", "data/a.py", "src/out.py", "src/kept.py", "src/gone.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("x = 1\n")
    Path(".gitignore").write_text("out.py\ndata/\n")
    Path("src/.gitignore").write_text("!out.py\ngone.py\n")
    assert files_found(capsys, ".") == 3  # kept.py, src/out.py, src/kept.py
    assert files_found(capsys, "src") == 2
    assert files_found(capsys, ".", "--no-gitignore") == 6
    assert files_found(capsys, ".", "out.py") == 4
    assert files_found(capsys, "data") == 1


def test_a_file_named_twice_is_linted_once(broken: Path, capsys: Capture) -> None:
    assert files_found(capsys, ".", "./train.py", str(broken.absolute())) == 1


def test_symlinks_that_lead_in_circles(broken: Path, capsys: Capture) -> None:
    Path("loop").symlink_to(".")
    Path("self.py").symlink_to("self.py")
    Path("dangling.py").symlink_to("nowhere.py")
    assert cli.main(["lint", ".", "--format", "json"]) == 1
    shown = capsys.readouterr()
    assert sorted(shown.err.splitlines()) == [
        "unstuck: dangling.py is not a regular file; name a Python source file.",
        "unstuck: self.py is not a regular file; name a Python source file.",
    ]


def test_an_import_through_a_circle_of_links(capsys: Capture) -> None:
    Path("model.py").symlink_to("model.py")
    Path("pkg").symlink_to("pkg")
    Path("train.py").write_text("import torch\nfrom model import Net\nfrom pkg.deep import x\n" + BROKEN)
    assert cli.main(["lint", "train.py"]) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_searched(broken: Path, capsys: Capture) -> None:
    Path("locked").mkdir()
    Path("locked").chmod(0)
    try:
        assert cli.main(["lint", "."]) == 1
        assert "locked cannot be searched (Permission denied)" in capsys.readouterr().out
        assert cli.main(["lint", "locked"]) == 2
    finally:
        Path("locked").chmod(0o700)
