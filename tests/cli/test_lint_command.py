from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from unstuck import cli

TRAINER = """\
from torch import nn


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def fit(self, data):
        for x, y in data:
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
"""
USE = """\
import torch
from trainer import Trainer

model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
Trainer(model, optimizer).fit(data)
"""


def test_a_broken_script(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", str(broken)]) == 1
    shown = capsys.readouterr()
    assert "error O12 double-softmax: " in shown.out
    assert " --> train.py:11:" in shown.out
    assert "unstuck explain O12" in shown.out
    assert "Found 1 error in 1 file." in shown.out
    assert shown.err == ""


def test_a_clean_script(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", str(fixed)]) == 0
    assert capsys.readouterr().out.startswith("Nothing found in 1 file; ")


def test_json(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--format", "json", str(broken)]) == 1
    document = json.loads(capsys.readouterr().out)
    (diagnosis,) = document["diagnoses"]
    assert (document["command"], diagnosis["code"], diagnosis["place"]["line"]) == ("lint", "O12", 11)
    assert diagnosis["verify"]["command"] == "unstuck lint train.py"


@pytest.mark.parametrize("wanted", ["json", "text"])
def test_output_to_a_file(broken: Path, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--format", wanted, "--output", "report", str(broken)]) == 1
    assert capsys.readouterr().out == ""
    assert "double-softmax" in Path("report").read_text(encoding="utf-8")


@pytest.mark.parametrize(("fail_on", "code"), [("error", 1), ("advice", 1), ("never", 0)])
def test_fail_on(broken: Path, fail_on: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--fail-on", fail_on, str(broken)]) == code


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--select", "O12"], True),
        (["--select", "double-softmax,O03"], True),
        (["--select", "O03"], False),
        (["--ignore", "o12"], False),
        (["--ignore", "O03, O04"], True),
    ],
)
def test_select_and_ignore(broken: Path, options: list[str], found: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", *options, str(broken)]) == int(found)


@pytest.mark.parametrize("options", [["--select", "O12", "--ignore", "O12"], ["--select", ","], ["--select", ""]])
def test_an_empty_selection_is_refused(broken: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", *options, str(broken)]) == 2
    assert "leave no rule to check" in capsys.readouterr().err


def test_an_unknown_rule_is_named_with_the_nearest(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--select", "double-sofmax", str(broken)]) == 2
    assert capsys.readouterr().err == ("unstuck: there is no rule 'double-sofmax'; did you mean double-softmax?\n")


def test_an_ignored_line(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = broken.read_text().replace("dim=1)\n", "dim=1)  # unstuck: ignore[O12]\n")
    broken.write_text(text)
    assert cli.main(["lint", str(broken)]) == 0


def test_a_folder(broken: Path, fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "."]) == 1
    shown = capsys.readouterr().out
    assert "Found 1 error in 2 files." in shown
    assert "Likely cause" not in shown


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "nowhere.py"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("unstuck: nowhere.py does not exist")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_folder_without_python(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert cli.main(["lint", "empty"]) == 2
    assert capsys.readouterr().err.startswith("unstuck: empty contains no Python files")


def test_without_a_path_the_current_folder_is_linted(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint"]) == 1
    assert " --> train.py:11:" in capsys.readouterr().out
    broken.unlink()
    assert cli.main(["lint"]) == 2
    assert capsys.readouterr().err.startswith("unstuck: . contains no Python files")


def test_what_an_import_leads_to_is_verified_where_it_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head = nn.Linear(8, 3)\n\n    def forward(self, x):\n        return self.head(x).softmax(1)\n"
    )
    Path("train.py").write_text(
        "import torch\nfrom net import Net\n\nmodel = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x, y in data:\n    optimizer.zero_grad()\n    torch.nn.functional.cross_entropy(model(x), y).backward()\n"
        "    optimizer.step()\n"
    )
    for path in ("train.py", "."):
        cli.main(["lint", "--select", "O12", "--format", "json", path])
        (diagnosis,) = json.loads(capsys.readouterr().out)["diagnoses"]
        assert diagnosis["place"]["path"] == "net.py"
        assert diagnosis["verify"]["command"] == "unstuck lint train.py"


@pytest.mark.parametrize("names", [("train.py", "trainer.py"), ("trainer.py", "train.py")])
def test_one_mistake_in_a_method_is_reported_once(names: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Read on its own the method steps `self.optimizer`, and from its caller `optimizer`."""
    Path("trainer.py").write_text(TRAINER)
    Path("train.py").write_text(USE)
    cli.main(["lint", "--select", "O04", "--format", "json", *names])
    (diagnosis,) = json.loads(capsys.readouterr().out)["diagnoses"]
    assert (diagnosis["place"]["path"], diagnosis["place"]["line"]) == ("trainer.py", 13)
    assert diagnosis["fix"]["edits"], "the one that can be fixed is kept"


def test_nothing_that_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("def f(:\n")
    assert cli.main(["lint", "bad.py"]) == 2
    assert capsys.readouterr().out.endswith("\nNo file could be checked.\n")


def test_a_syntax_error_is_told_and_the_others_are_still_read(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("def f(:\n")
    assert cli.main(["lint", "bad.py", str(broken)]) == 1
    shown = capsys.readouterr().out
    assert "bad.py:1:" in shown
    assert "double-softmax" in shown
    assert "in 1 file." in shown


def test_a_syntax_error_alone_is_bad_input(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("def f(:\n")
    assert cli.main(["lint", "bad.py", str(fixed)]) == 2
    assert "Nothing found in 1 file" in capsys.readouterr().out


def test_a_syntax_error_in_json_is_an_entry_and_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.py").write_text("def f(:\n")
    assert cli.main(["lint", "--format", "json", "bad.py"]) == 2
    shown = capsys.readouterr()
    (error,) = json.loads(shown.out)["errors"]
    assert error["place"]["path"] == "bad.py"
    assert shown.err.startswith("unstuck: bad.py:1:")


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"x = '\xff\xfe'\n"])
def test_a_file_that_is_not_text(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("blob.py").write_bytes(content)
    assert cli.main(["lint", "blob.py"]) == 2
    assert "blob.py" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken.chmod(0)
    assert cli.main(["lint", str(broken)]) == 2
    assert "cannot be read" in capsys.readouterr().out


def test_as_a_user_types_it(broken: Path, unstuck: object) -> None:
    done = unstuck("lint", "train.py")  # type: ignore[operator]
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
