"""The formats for programs, each as the program that reads it needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fakes import detailed_finding, make_finding
from odd_results import ODD_PATH, everything, lint_result, odd_finding, run_without_place

from unstuck.cli import main
from unstuck.cli.common import format_names
from unstuck.events import Place
from unstuck.findings import Fix, Severity
from unstuck.findings.result import Problem
from unstuck.report import formats
from unstuck.report.formats import github, render

BROKEN = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for step in range(30):
    loss = criterion(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


def test_every_offered_format_can_be_written() -> None:
    assert format_names() == ["text", "concise", "json", "json-lines", "sarif", "github", "junit"]
    for name in format_names():
        assert render(everything(), name)


def test_a_format_is_one_file_that_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "one_word.py").write_text("def render(result):\n    return result.command\n")
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    assert format_names()[-1] == "one-word"
    assert render(lint_result(), "one-word") == "lint"


def test_concise_is_one_line_each() -> None:
    lines = render(everything(), "concise").split("\n")
    assert lines[2] == (
        "train.py:5:16: O12 error double-softmax: cross_entropy got probabilities in all 640 calls: "
        "every row of its input sums to 1."
    )
    assert lines[1].startswith(f"{ODD_PATH}:5:9: O12 warning double-softmax: 50% of ")
    assert all(line.isprintable() for line in lines)
    assert lines[3].startswith("X99 advice some-rule: ")
    assert len(lines) == 5
    assert lines[-1] == ""


def test_concise_is_empty_when_nothing_was_found() -> None:
    assert render(lint_result(), "concise") == ""


def test_what_a_run_shows_without_a_line_is_shown_at_its_script() -> None:
    assert render(run_without_place(), "concise").startswith("train.py: O12 error ")
    assert render(run_without_place(), "github").startswith("::error file=train.py,title=O12 double-softmax::")


def test_json_lines_are_the_diagnoses_of_the_json_form() -> None:
    whole = json.loads(render(everything(), "json"))
    lines = render(everything(), "json-lines").splitlines()
    assert [json.loads(line) for line in lines] == whole["diagnoses"]
    assert render(lint_result(), "json-lines") == ""


def test_github_commands() -> None:
    lines = render(everything(), "github").split("\n")
    assert lines[2].startswith(
        "::error file=train.py,line=5,col=16,endLine=5,endColumn=50,title=O12 double-softmax::cross_entropy got "
    )
    # Columns are left out where the annotation spans lines; GitHub refuses them there.
    assert lines[1].startswith(
        "::warning file=my runs/größe 100%25%2Ca%3Ab.py,line=5,endLine=7,title=O12 double-softmax::50%25 of%0D%0A"
    )
    assert "::error::" in lines[1], "what stands in a message needs no escape but for line ends and per cent"
    assert lines[3].startswith("::notice title=X99 some-rule::")
    assert lines[4].startswith("::error file=bad.py,line=3,col=1,endLine=3,title=unstuck could not look::bad.py:3:1 ")
    assert len(lines) == 8


def test_a_github_message_can_be_read_back() -> None:
    line = render(lint_result(odd_finding()), "github").rstrip("\n")
    _, properties, message = line.split("::", 2)
    told = message.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert told == f"{odd_finding().message}\nDrop it.\nunstuck explain O12"
    named = dict(item.split("=", 1) for item in properties.removeprefix("warning ").split(","))
    assert named["file"].replace("%2C", ",").replace("%3A", ":").replace("%25", "%") == ODD_PATH


def test_github_paths_start_at_the_workspace(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own_folder / "sub").mkdir()
    monkeypatch.chdir(own_folder / "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(own_folder))
    assert render(lint_result(make_finding()), "github").startswith("::error file=sub/train.py,")
    elsewhere = make_finding(path="/elsewhere/train.py")
    assert render(lint_result(elsewhere), "github").startswith("::error file=/elsewhere/train.py,")


def test_every_severity_has_a_github_command() -> None:
    assert set(github.COMMANDS) == set(Severity)


def test_junit_has_a_suite_per_file() -> None:
    root = ElementTree.fromstring(render(everything(), "junit").encode())
    assert {suite.get("name"): suite.get("tests") for suite in root} == {
        "train.py": "1",
        ODD_PATH: "1",
        "unstuck": "3",
        "/elsewhere/model.py": "1",
        "bad.py": "1",
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("7", "4", "3")
    case = root[0][0]
    assert case.attrib == {
        "classname": "train.py",
        "name": "O12 double-softmax at train.py:5:16",
        "file": "train.py",
        "line": "5",
    }
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == "error O12"
    assert "unstuck explain O12" in (failure.text or "")


def test_junit_keeps_only_what_xml_can_hold() -> None:
    root = ElementTree.fromstring(render(lint_result(odd_finding()), "junit").encode())
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.get("message", "").split() == "50% of [31mthe <rows>, e.g. ::error::\U0001f600 & \"'".split()


def test_a_clean_junit_report_is_one_test_that_passed() -> None:
    root = ElementTree.fromstring(render(lint_result(checked=("O12", "G01")), "junit").encode())
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "0", "0")
    assert root[0][0].get("name") == "2 pitfalls looked for, none found"


@pytest.mark.parametrize("wanted", format_names())
def test_a_file_name_that_is_no_text_still_gets_a_report(wanted: str) -> None:
    path = os.fsdecode(b"caf\xe9.py")
    result = lint_result(make_finding(path=path), problems=(Problem(f"{path} is odd", Place(path, 1)),))
    render(result, wanted).encode("utf-8")


@pytest.mark.parametrize("wanted", format_names()[1:])
def test_from_the_command_line(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(BROKEN)
    Path("good.py").write_text(BROKEN.replace(", nn.Softmax(dim=1)", ""))
    assert main(["lint", "train.py", "--format", wanted]) == 1
    shown = capsys.readouterr().out
    assert "O12" in shown
    assert main(["lint", "train.py", "--format", wanted, "--output", "report", "--fail-on", "never"]) == 0
    assert Path("report").read_text(encoding="utf-8") == shown
    assert main(["lint", "good.py", "--format", wanted]) == 0


def test_a_notebook_is_shown_by_cell() -> None:
    result = lint_result(make_finding(place=Place("notes.ipynb", 2, 5, 2, 9, cell=3), fix=Fix("Drop it.")))
    assert render(result, "concise").startswith("notes.ipynb:cell 3:2:5: O12 error ")
    assert render(result, "github").startswith(
        "::error file=notes.ipynb,title=O12 double-softmax::cell 3, line 2: The loss "
    )
    assert 'name="O12 double-softmax at notes.ipynb:cell 3:2:5" file="notes.ipynb">' in render(result, "junit")
    assert json.loads(render(result, "json-lines"))["place"]["cell"] == 3


@pytest.mark.parametrize("wanted", ["concise", "github"])
def test_lines_are_sorted_by_place(wanted: str) -> None:
    places = [Place("a.py", 2, 9), Place("a.py", 10, 1), Place("b.py", 1, 1), Place("b.py", 1, 5)]
    codes = ["O03", "G10", "O12", "G01"]
    findings = [make_finding(code, place=place) for code, place in zip(codes, places, strict=True)]
    lines = render(lint_result(*(findings[index] for index in (3, 1, 2, 0))), wanted).splitlines()
    assert [next(code for code in codes if code in line) for line in lines] == codes


def test_the_first_finding_is_written_first() -> None:
    first, second = make_finding("G10"), detailed_finding()
    lines = render(lint_result(first, second), "json-lines").splitlines()
    assert [json.loads(line)["code"] for line in lines] == ["G10", "O12"]


@pytest.mark.parametrize("wanted", ["json", "json-lines", "sarif", "junit"])
def test_a_stream_without_unicode_gets_the_same_bytes(wanted: str) -> None:
    Path("größe.py").write_text(BROKEN)
    command = [sys.executable, "-m", "unstuck", "lint", "größe.py", "--format", wanted]
    shown = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60)
    assert main([*command[3:], "--output", "report"]) == shown.returncode == 1
    assert shown.stdout == Path("report").read_bytes()
    assert (b"gr%C3%B6%C3%9Fe.py" if wanted == "sarif" else "größe.py".encode()) in shown.stdout


def test_a_run_and_its_record_are_reported_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(BROKEN)
    command = [sys.executable, "-m", "unstuck", "run", "--format", "concise", "--output", "first", "train.py"]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 1
    assert Path("first").read_text().startswith("train.py:4:40: O12 error double-softmax: ")
    for wanted in format_names():
        assert main(["report", "--format", wanted]) == 1
        shown = capsys.readouterr().out
        assert "O12" in shown
        assert wanted != "concise" or shown == Path("first").read_text()
