"""`unstuck lint --fix`, `--unsafe-fixes` and `--diff` as a user meets them."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from unstuck.cli import main
from unstuck.events import Place
from unstuck.findings import Edit, Finding, Fix, Severity, Subject
from unstuck.lint import engine
from unstuck.lint.fixes import ALL, Find, fix_all, fix_document, write
from unstuck.lint.settings import Settings
from unstuck.rule import Rule
from unstuck.source import SourceError
from unstuck.source.documents.document import Document

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
WIPED = """\
for x, y in data:  # größe
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.zero_grad()  # clear
    optimizer.step()
"""
INLINE = """\
for x, y in data:
    optimizer.zero_grad()
    loss = F.cross_entropy(F.softmax(model(x), dim=1), y)
    loss.backward()
    optimizer.step()
"""
IN_FORWARD = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x).softmax(1)


net = Net()
trainer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in data:
    trainer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    trainer.step()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lint(*words: str) -> int:
    return main(["lint", "--isolated", "--no-cache", *words])


def test_fix_applies_the_safe_fixes_and_reports_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED + INLINE + IN_FORWARD, encoding="utf-8")
    assert lint("--fix", "train.py") == 1
    said = capsys.readouterr().out
    assert said.endswith("Fixed 2 findings; 1 remains. --unsafe-fixes fixes 1 more; review the change first.\n")
    assert "O12" in said
    assert "O04 step-order" not in said
    moved = WIPED.replace("    optimizer.zero_grad()  # clear\n", "").replace(
        "    loss.backward()\n", "    optimizer.zero_grad()  # clear\n    loss.backward()\n"
    )
    plain = INLINE.replace("F.softmax(model(x), dim=1)", "model(x)")
    assert Path("train.py").read_text(encoding="utf-8") == HEAD + moved + plain + IN_FORWARD


def test_unsafe_fixes_include_the_safe_ones(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED + IN_FORWARD, encoding="utf-8")
    assert lint("--unsafe-fixes", "train.py") == 0
    assert capsys.readouterr().out.endswith("Fixed 2 findings; none remain.\n")
    assert "return self.head(x)\n" in Path("train.py").read_text(encoding="utf-8")
    before = Path("train.py").read_bytes()
    assert lint("--unsafe-fixes", "train.py") == 0
    assert capsys.readouterr().out.endswith("Fixed nothing; none remain.\n")
    assert Path("train.py").read_bytes() == before


def test_where_all_is_fixed_the_summary_is_all_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + INLINE)
    assert lint("--unsafe-fixes", "train.py") == 0
    assert capsys.readouterr().out == "Fixed 1 finding; none remain.\n"


def test_diff_shows_what_patch_can_apply_and_changes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    text = HEAD + WIPED + IN_FORWARD
    Path("train.py").write_text(text, encoding="utf-8")
    assert lint("--diff", "train.py") == 1
    shown = capfd.readouterr()
    assert shown.err == "Would fix 1 finding.\n"
    assert "+    optimizer.zero_grad()  # clear\n     loss.backward()\n-    optimizer.zero_grad()" in shown.out
    assert Path("train.py").read_text(encoding="utf-8") == text
    Path("change.diff").write_text(shown.out, encoding="utf-8")
    subprocess.run(["patch", "-p0", "-i", "change.diff"], check=True, capture_output=True)
    patched = Path("train.py").read_bytes()
    Path("train.py").write_text(text, encoding="utf-8")
    lint("--fix", "train.py")
    assert Path("train.py").read_bytes() == patched
    capfd.readouterr()
    assert lint("--diff", "train.py") == 0
    assert capfd.readouterr() == ("", "Would fix nothing.\n")
    assert lint("--diff", "--unsafe-fixes", "train.py") == 1


def test_machine_formats_keep_stdout_to_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED, encoding="utf-8")
    assert lint("--fix", "--format", "json", "train.py") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["diagnoses"] == []
    assert shown.err == "Fixed 1 finding; none remain.\n"


def test_the_report_says_what_can_be_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED + IN_FORWARD, encoding="utf-8")
    lint("train.py")
    said = capsys.readouterr().out
    assert "  fix       unstuck lint --fix train.py\n" in said
    assert "  fix       unstuck lint --unsafe-fixes train.py  (look first: add --diff)\n" in said


def test_an_ignored_finding_is_not_fixed() -> None:
    text = HEAD + WIPED.replace("# clear", "# unstuck: ignore[O04]")
    Path("train.py").write_text(text, encoding="utf-8")
    assert lint("--fix", "train.py") == 0
    assert Path("train.py").read_text(encoding="utf-8") == text


def test_only_selected_rules_are_fixed() -> None:
    Path("train.py").write_text(HEAD + WIPED + INLINE, encoding="utf-8")
    assert lint("--fix", "--select", "O12", "train.py") == 0
    assert Path("train.py").read_text(encoding="utf-8") == HEAD + WIPED + INLINE.replace(
        "F.softmax(model(x), dim=1)", "model(x)"
    )


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("mark", "first", "encoding"),
    [
        (b"", "", "utf-8"),
        (b"\xef\xbb\xbf", "", "utf-8"),
        (b"", "# -*- coding: latin-1 -*-\n", "latin-1"),
        (b"", "# coding: cp1252\n", "cp1252"),
    ],
)
def test_encoding_mark_and_line_ends_survive(end: bytes, mark: bytes, first: str, encoding: str) -> None:
    def raw(text: str) -> bytes:
        return mark + (first + text).encode(encoding).replace(b"\n", end)

    Path("train.py").write_bytes(raw(HEAD + INLINE + WIPED))
    assert lint("--fix", "train.py") == 0
    rest = INLINE.replace("F.softmax(model(x), dim=1)", "model(x)")
    lines = WIPED.splitlines(keepends=True)
    moved = "".join([*lines[:2], lines[3], lines[2], lines[4]])
    assert Path("train.py").read_bytes() == raw(HEAD + rest + moved)


def test_mixed_line_ends_stay_where_they_were() -> None:
    lines = (HEAD + INLINE).encode().splitlines(keepends=True)
    mixed = [line.replace(b"\n", b"\r\n") if index % 3 else line for index, line in enumerate(lines)]
    Path("train.py").write_bytes(b"".join(mixed))
    assert lint("--fix", "train.py") == 0
    wanted = [line.replace(b"F.softmax(model(x), dim=1)", b"model(x)") for line in mixed]
    assert Path("train.py").read_bytes() == b"".join(wanted)


def test_a_file_without_a_final_newline_stays_without() -> None:
    Path("train.py").write_text((HEAD + WIPED).rstrip("\n"), encoding="utf-8")
    assert lint("--fix", "train.py") == 0
    assert Path("train.py").read_text(encoding="utf-8").endswith("optimizer.step()")


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_permissions_and_links_survive() -> None:
    Path("real.py").write_text(HEAD + WIPED, encoding="utf-8")
    Path("real.py").chmod(0o754)
    Path("train.py").symlink_to("real.py")
    assert lint("--fix", "train.py") == 0
    assert Path("train.py").is_symlink()
    assert stat.S_IMODE(Path("real.py").stat().st_mode) == 0o754
    assert sorted(path.name for path in Path().iterdir()) == ["real.py", "train.py"]


def test_a_file_with_two_names_is_fixed_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("real.py").write_text(HEAD + WIPED, encoding="utf-8")
    Path("train.py").symlink_to("real.py")
    assert lint("--fix", ".") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED, encoding="utf-8")
    Path("train.py").chmod(0o444)
    assert lint("--fix", "train.py") == 1
    assert "train.py cannot be written (permission denied); it was not modified." in capsys.readouterr().err


def test_what_cannot_be_written_is_left_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED, encoding="utf-8")
    # In the way of the draft that is to replace the file.
    Path(f".train.py.{os.getpid()}.part").mkdir()
    assert lint("--fix", "train.py") == 1
    shown = capsys.readouterr()
    assert "unstuck: train.py cannot be written (" in shown.err
    assert shown.out.endswith("Fixed nothing; 1 remains.\n")
    assert Path("train.py").read_text(encoding="utf-8") == HEAD + WIPED


def test_a_file_that_changes_meanwhile_is_left_alone() -> None:
    path = Path("train.py")
    path.write_text(HEAD + WIPED, encoding="utf-8")
    [fixed], _ = fix_all(engine.lint(["train.py"], Settings()), Settings(), ALL)
    path.write_text("# mine\n", encoding="utf-8")
    with pytest.raises(SourceError, match="changed in the meantime"):
        write(fixed)
    assert path.read_text(encoding="utf-8") == "# mine\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--fix -", "--fix cannot rewrite stdin; name a file."),
        ("--unsafe-fixes -", "--unsafe-fixes cannot rewrite stdin; name a file."),
        ("--add-ignores -", "--add-ignores cannot rewrite stdin; name a file."),
        ("--diff -", "--diff cannot show changes to stdin; name a file."),
        (
            "--fix --add-ignores train.py",
            "--fix and --add-ignores contradict each other; use one of them.",
        ),
        ("--diff --format json train.py", "--diff prints only a diff; drop --format json or --diff."),
        ("--diff --statistics train.py", "--diff prints only a diff; drop --statistics or --diff."),
    ],
)
def test_what_cannot_be_done_together(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED, encoding="utf-8")
    assert lint(*words.split()) == 2
    assert capsys.readouterr() == ("", f"unstuck: {sentence}\n")
    assert Path("train.py").read_text(encoding="utf-8") == HEAD + WIPED


def test_a_diff_can_be_written_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(HEAD + WIPED, encoding="utf-8")
    assert lint("--diff", "train.py") == 1
    shown = capsys.readouterr().out
    assert lint("--diff", "--output", "change.diff", "train.py") == 1
    assert capsys.readouterr() == ("", "Would fix 1 finding.\n")
    assert Path("change.diff").read_text(encoding="utf-8") == shown


RULE = Rule(code="X01", name="made-up", title="a rule of the test", severity=Severity.ERROR)


def fix_by(text: str, edits_of: dict[str, Edit]) -> tuple[str, list[str], list[str]]:
    """Fix with a rule that finds each of the words, and proposes the edit that goes with it."""

    def find(document: Document) -> list[Finding]:
        tree = ast.parse(document.text)
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in edits_of]
        return [_finding(node, edits_of[node.id]) for node in names]

    fixed = fix_document(Path("a.py"), Document(text.encode(), "a.py"), _no_syntax_errors(find), ALL)
    said = [[finding.subject.name for finding in group] for group in (fixed.applied, fixed.refused)]
    return fixed.after.text, *said


def _no_syntax_errors(find: Find) -> Find:
    def guarded(document: Document) -> list[Finding]:
        try:
            return find(document)
        except SyntaxError:
            raise SourceError("it does not parse") from None

    return guarded


def _finding(node: ast.Name, edit: Edit) -> Finding:
    return RULE.finding(
        f"{node.id} is there.",
        cause="It is.",
        fix=Fix("Change it.", (edit,), "safe"),
        subject=Subject("call", node.id),
        place=Place("a.py", node.lineno, node.col_offset + 1),
    )


def test_a_fix_that_breaks_the_file_is_refused_and_the_others_are_made() -> None:
    edits = {"bad": Edit("a.py", 1, 1, 1, 4, "(("), "good": Edit("a.py", 2, 1, 2, 5, "fine")}
    assert fix_by("bad\ngood\n", edits) == ("bad\nfine\n", ["good"], ["bad"])


def test_a_fix_that_does_not_cure_is_refused() -> None:
    assert fix_by("bad\n", {"bad": Edit("a.py", 1, 1, 1, 4, "bad, bad")}) == ("bad\n", [], ["bad"])


def test_a_refused_fix_is_not_mentioned_once_another_has_cured_it() -> None:
    edits = {"bad": Edit("a.py", 1, 1, 1, 4, "(("), "good": Edit("a.py", 1, 1, 2, 5, "fine")}
    assert fix_by("bad\ngood\n", edits) == ("fine\n", ["good"], [])


def test_of_fixes_that_touch_the_first_goes_first() -> None:
    edits = {"one": Edit("a.py", 1, 1, 1, 4, "a"), "two": Edit("a.py", 1, 4, 1, 4, "")}
    text, applied, refused = fix_by("one\ntwo\n", edits)
    assert text == "a\ntwo\n"
    assert applied == ["one"]
    assert refused == ["two"]


def test_edits_of_other_files_are_not_made() -> None:
    assert fix_by("bad\n", {"bad": Edit("b.py", 1, 1, 1, 4, "x")}) == ("bad\n", [], [])
