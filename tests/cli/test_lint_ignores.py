"""Ignore comments: counted, added, and reported when nobody needs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unstuck import cli

Capture = pytest.CaptureFixture[str]
HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F

model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
"""
TAIL = """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script(lines: str, name: str = "train.py") -> Path:
    path = Path(name)
    path.write_bytes((HEAD + lines + TAIL).encode())
    return path


ONE_LINE = "    loss = F.cross_entropy(F.softmax(model(x), 1), y)"


def add_ignores(capsys: Capture, code: int = 0) -> str:
    assert cli.main(["lint", ".", "--add-ignores", "--select", "O12"]) == code
    shown = capsys.readouterr()
    return shown.out + shown.err


def test_a_silenced_finding_is_counted(capsys: Capture) -> None:
    script(ONE_LINE + "  # unstuck: ignore[O12]")
    assert cli.main(["lint", "train.py", "--select", "O12"]) == 0
    assert "1 finding ignored" in capsys.readouterr().out
    cli.main(["lint", "train.py", "--select", "O12", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["ignored"] == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ONE_LINE, ONE_LINE + "  # unstuck: ignore[O12]"),
        (ONE_LINE + "   ", ONE_LINE + "  # unstuck: ignore[O12]"),
        (ONE_LINE + "  # a note", ONE_LINE + "  # a note  # unstuck: ignore[O12]"),
        (ONE_LINE + "  # unstuck: ignore[X12]", ONE_LINE + "  # unstuck: ignore[X12, O12]"),
        (ONE_LINE + "  # é ü", ONE_LINE + "  # é ü  # unstuck: ignore[O12]"),
        (
            "    loss = F.cross_entropy(\n        F.softmax(\n            model(x),\n            1,\n        ), y)",
            "    loss = F.cross_entropy(\n        F.softmax(  # unstuck: ignore[O12]\n            model(x),\n"
            "            1,\n        ), y)",
        ),
        (
            "    loss = F.cross_entropy(F.softmax( \\\n        model(x), 1), y)",
            "    loss = F.cross_entropy(F.softmax( \\\n        model(x), 1), y)  # unstuck: ignore[O12]",
        ),
        (
            '    loss, note = F.cross_entropy(F.softmax(model(x), 1), y), """one\n    two"""',
            None,
        ),
    ],
)
def test_a_comment_is_added_where_it_can_stand(before: str, after: str | None, capsys: Capture) -> None:
    path = script(before)
    original = path.read_bytes()
    if after is None:
        assert "cannot add a comment" in add_ignores(capsys, 1)
        assert path.read_bytes() == original
        return
    assert "Added 1 ignore comment to 1 file." in add_ignores(capsys)
    assert path.read_bytes() == (HEAD + after + TAIL).encode()
    assert cli.main(["lint", ".", "--select", "O12", "--fail-on", "advice"]) == 0
    capsys.readouterr()
    written = path.read_bytes()
    assert "Added 0 ignore comments to 0 files." in add_ignores(capsys)
    assert path.read_bytes() == written


def test_line_ends_marks_and_rights_survive(capsys: Capture) -> None:
    path = Path("train.py")
    raw = b"\xef\xbb\xbf" + (HEAD + ONE_LINE + TAIL).replace("\n", "\r\n").encode()
    path.write_bytes(raw)
    path.chmod(0o750)
    add_ignores(capsys)
    wanted = ONE_LINE.encode() + b"\r\n"
    assert path.read_bytes() == raw.replace(wanted, ONE_LINE.encode() + b"  # unstuck: ignore[O12]\r\n")
    assert path.stat().st_mode & 0o777 == 0o750


def test_the_comment_goes_to_the_file_that_holds_the_line(capsys: Capture) -> None:
    Path("net.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.head = nn.Linear(8, 3)\n\n    def forward(self, x):\n        return self.head(x).softmax(1)\n"
    )
    text = HEAD.replace("nn.Linear(8, 3)", "Net()").replace("import torch\n", "import torch\nfrom net import Net\n", 1)
    Path("train.py").write_text(text + "    loss = F.cross_entropy(model(x), y)" + TAIL)
    assert "Added 1 ignore comment to 1 file." in add_ignores(capsys)
    assert "softmax(1)  # unstuck: ignore[O12]" in Path("net.py").read_text()
    # The comment is needed, though not by a finding in its own file.
    assert cli.main(["lint", ".", "--fail-on", "advice", "--select", "O12,U01"]) == 0


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (
            "    loss = F.cross_entropy(model(x), y)  # unstuck: ignore[O12]",
            "`# unstuck: ignore[O12]` silences nothing",
        ),
        ("    loss = F.cross_entropy(model(x), y)  # unstuck: ignore", "`# unstuck: ignore` silences nothing"),
        (ONE_LINE + "  # unstuck: ignore[O12, Q99]", "`# unstuck: ignore[Q99]` does not name a rule"),
    ],
)
def test_a_comment_that_nobody_needs_is_advice(line: str, word: str, capsys: Capture) -> None:
    script(line)
    assert cli.main(["lint", "train.py"]) == 0
    shown = capsys.readouterr().out
    assert "U01 unused-ignore" in shown
    assert word in " ".join(shown.split())
    assert " --> train.py:9:" in shown
    assert cli.main(["lint", "train.py", "--fail-on", "advice"]) == 1
    capsys.readouterr()
    cli.main(["lint", "train.py", "--format", "json", "--select", "U01"])
    (diagnosis,) = json.loads(capsys.readouterr().out)["diagnoses"]
    assert (diagnosis["code"], diagnosis["severity"], diagnosis["place"]["line"]) == ("U01", "advice", 9)


def test_statistics(capsys: Capture) -> None:
    script(ONE_LINE)
    script(ONE_LINE, "more.py")
    script(ONE_LINE + "  # unstuck: ignore[O12]", "silenced.py")
    Path("bad.py").write_text("def f(:\n")
    words = ["lint", ".", "--statistics", "--select", "O12,O04"]
    assert cli.main(words) == 1
    shown = capsys.readouterr()
    assert shown.out == "2  O12  error    double-softmax\n2 findings in 3 files, 1 ignored\n"
    assert shown.err.startswith("unstuck: bad.py:1:")
    assert cli.main([*words, "--format", "json", "--output", "counts.json"]) == 1
    document = json.loads(Path("counts.json").read_text())
    (row,) = document["statistics"]
    assert row == {"code": "O12", "name": "double-softmax", "severity": "error", "count": 2}
    assert (document["files"], document["ignored"], len(document["errors"])) == (3, 1, 1)


def test_statistics_of_clean_code(fixed: Path, capsys: Capture) -> None:
    assert cli.main(["lint", str(fixed), "--statistics", "--select", "O12"]) == 0
    assert capsys.readouterr().out == "0 findings in 1 file\n"


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("ignore O12", "ignore[O12]"),
        ("ignore(O12)", "ignore[O12]"),
        ("ignore: o12", "ignore[o12]"),
        ("ignore [O12]", "ignore[O12]"),
        ("ignore[O12", "ignore[O12]"),
        ("ignore O12, double-softmax", "ignore[O12, double-softmax]"),
        ("ignore (O)", "ignore[O]"),
        ("ignore double_softmax", "ignore[double_softmax]"),
        ("ignore O12 on purpose", "ignore[O12] on purpose"),
        ("ignore O12  # on purpose", "ignore[O12]  # on purpose"),
    ],
)
def test_rules_without_brackets_silence_nothing(typed: str, right: str, capsys: Capture) -> None:
    script(ONE_LINE + f"  # unstuck: {typed}")
    words = ["lint", "train.py", "--select", "O12,U01"]
    assert cli.main([*words, "--format", "concise"]) == 1
    shown = capsys.readouterr().out
    assert "O12 error double-softmax" in shown
    written = right.partition("]")[0]
    assert f"brackets are missing: write {written}]." in shown
    assert cli.main(["lint", "train.py", "--select", "U01", "--fix"]) == 0
    assert Path("train.py").read_text().splitlines()[8] == f"{ONE_LINE}  # unstuck: {right}"
    assert cli.main([*words, "--fail-on", "advice"]) == 0


@pytest.mark.parametrize("typed", ["ignore please", "ignore well-known issue", "ignore ["])
def test_words_that_name_no_rule_silence_nothing(typed: str, capsys: Capture) -> None:
    script(ONE_LINE + f"  # unstuck: {typed}")
    assert cli.main(["lint", "train.py", "--select", "O12,U01", "--format", "concise"]) == 1
    assert "brackets are missing: write such as ignore[O12]." in capsys.readouterr().out
    before = Path("train.py").read_bytes()
    cli.main(["lint", "train.py", "--select", "U01", "--unsafe-fixes"])
    assert Path("train.py").read_bytes() == before


@pytest.mark.parametrize("typed", ["ignore", "ignore  # on purpose", "ignore since this is a demonstration"])
def test_a_comment_for_all_rules_may_carry_a_remark(typed: str) -> None:
    script(ONE_LINE + f"  # unstuck: {typed}")
    assert cli.main(["lint", "train.py", "--select", "O12,U01", "--fail-on", "advice"]) == 0


@pytest.mark.parametrize("typed", ["ignored[O12]", "ignore-file"])
def test_other_words_are_no_ignore_comment(typed: str) -> None:
    script(ONE_LINE + f"  # unstuck: {typed}")
    assert cli.main(["lint", "train.py", "--select", "O12"]) == 1


def test_a_mistyped_comment_that_nobody_needs_is_removed(capsys: Capture) -> None:
    script("    loss = F.cross_entropy(model(x), y)  # unstuck: ignore O12")
    assert cli.main(["lint", "train.py", "--select", "U01", "--unsafe-fixes"]) == 0
    assert "Fixed 1 finding; none remain." in capsys.readouterr().out
    assert Path("train.py").read_text().splitlines()[8] == "    loss = F.cross_entropy(model(x), y)"


@pytest.mark.parametrize("word", ["O", "o1", "O12", "M, O"])
def test_the_beginning_of_a_code_silences(word: str, capsys: Capture) -> None:
    script(ONE_LINE + f"  # unstuck: ignore[{word}]")
    assert cli.main(["lint", "train.py", "--select", "O12"]) == 0
    assert "1 finding ignored" in capsys.readouterr().out
    cli.main(["lint", "train.py", "--select", "U01", "--format", "concise"])
    unused = capsys.readouterr().out
    assert ("ignore[M]` silences nothing on this line" in unused) is (word == "M, O")
    assert unused.count("\n") == (word == "M, O")


def test_a_beginning_that_another_file_needs_is_used(capsys: Capture) -> None:
    Path("net.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.head = nn.Linear(8, 3)\n\n    def forward(self, x):\n"
        "        return self.head(x).softmax(1)  # unstuck: ignore[O1]\n"
        + HEAD
        + "    loss = F.mse_loss(model(x), y)"
        + TAIL
    )
    text = HEAD.replace("nn.Linear(8, 3)", "Net()").replace("import torch\n", "import torch\nfrom net import Net\n", 1)
    Path("train.py").write_text(text + "    loss = F.cross_entropy(model(x), y)" + TAIL)
    cli.main(["lint", "net.py", "--select", "U01", "--format", "concise"])
    assert "U01" in capsys.readouterr().out
    assert cli.main(["lint", ".", "--select", "O12,U01", "--fail-on", "advice"]) == 0


def test_adding_ignores_mends_a_mistyped_comment(capsys: Capture) -> None:
    script(ONE_LINE + "  # unstuck: ignore O12")
    add_ignores(capsys)
    assert Path("train.py").read_text().splitlines()[8] == ONE_LINE + "  # unstuck: ignore[O12]"


def test_a_misspelled_rule_is_corrected_and_not_removed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("x = 1  # unstuck: ignore[O04/never-cleard]\n")
    cli.main(["lint", "--diff", "--unsafe-fixes", "train.py"])
    cli.main(["lint", "train.py"])
    shown = capsys.readouterr().out
    assert "Write `# unstuck: ignore[O04/never-cleared]`." in " ".join(shown.split())
