"""SARIF: valid by the schema of the standard, and with what code scanning shows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import schemas
from fakes import SCRIPT, detailed_finding, make_finding
from odd_results import ODD_PATH, everything, lint_result, odd_finding, run_without_place

from unstuck.cli import main
from unstuck.events import Place
from unstuck.findings import Diagnosis, Edit, Fix, Severity
from unstuck.findings.result import Result
from unstuck.report.formats import render
from unstuck.report.formats.sarif import LEVELS, PROBLEMS
from unstuck.rule import all_rules


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run_of(result: Result) -> dict[str, Any]:
    log = json.loads(render(result, "sarif"))
    assert schemas.mistakes(log, schemas.SARIF) == []
    assert len(log["runs"]) == 1
    run: dict[str, Any] = log["runs"][0]
    return run


def test_the_schema_is_the_standards_and_can_say_no() -> None:
    assert "oasis-tcs/sarif-spec" in schemas.schema(schemas.SARIF)["$id"]
    log = json.loads(render(everything(), "sarif"))
    log["runs"][0]["results"][0]["level"] = "fatal"
    del log["runs"][0]["tool"]["driver"]["name"]
    assert len(schemas.mistakes(log, schemas.SARIF)) == 2


@pytest.mark.parametrize("result", [everything(), lint_result(), run_without_place()])
def test_it_is_valid(result: Result) -> None:
    run = run_of(result)
    assert len(run["results"]) == len(result.verdict.diagnoses)
    for found in run["results"]:
        assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == found["ruleId"]


def test_every_rule_has_help() -> None:
    codes = tuple(rule.code for rule in all_rules())
    described = run_of(lint_result(checked=codes))["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in described] == sorted(codes)
    for rule in described:
        assert rule["help"]["markdown"].startswith(f"# {rule['id']} {rule['name']}: ")
        assert rule["help"]["text"].startswith("What happens\n\n")
        assert "# finding:" not in rule["help"]["markdown"]
        assert rule["shortDescription"]["text"].endswith(".")
        assert len(rule["fullDescription"]["text"]) > 20
        assert "helpUri" not in rule
    assert {rule["id"]: rule["defaultConfiguration"]["level"] for rule in described} == {
        rule.code: {"error": "error", "warning": "warning", "advice": "note"}[rule.severity.value]
        for rule in all_rules()
    }


def test_a_rule_outside_the_catalogue_is_described_too() -> None:
    described = run_of(everything())["tool"]["driver"]["rules"]
    assert next(rule for rule in described if rule["id"] == "X99")["shortDescription"]["text"] == "Some rule."


def test_a_result_has_its_region_and_the_way_to_it() -> None:
    (found,) = run_of(lint_result(detailed_finding()))["results"]
    place = found["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "train.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 5, "startColumn": 16, "endLine": 5, "endColumn": 50},
    }
    assert found["locations"][0]["logicalLocations"] == [{"fullyQualifiedName": "Net.forward", "kind": "function"}]
    assert found["relatedLocations"][0]["message"]["text"] == "loss = criterion(model(x), y)"
    steps = found["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["physicalLocation"]["region"]["startLine"] for step in steps] == [5, 9]
    assert steps[0]["location"]["message"]["text"] == "return torch.softmax(self.head(x), dim=1)"


def test_the_flow_inside_one_function_goes_down_its_lines() -> None:
    finding = make_finding(line=9, related=(Place("train.py", 4), Place("train.py", 7)))
    (found,) = run_of(lint_result(finding))["results"]
    steps = found["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["physicalLocation"]["region"]["startLine"] for step in steps] == [4, 7, 9]


def test_a_finding_of_one_line_has_no_flow() -> None:
    (found,) = run_of(lint_result(make_finding()))["results"]
    assert "codeFlows" not in found
    assert found["relatedLocations"] == []


@pytest.mark.parametrize(
    "path", [ODD_PATH, "a b/ü#?.py", "x/../train.py", os.fsdecode(b"caf\xe9.py"), "c:/d.py", "日本/モデル.py"]
)
def test_uris_can_be_read_back(path: str) -> None:
    (found,) = run_of(lint_result(make_finding(path=path)))["results"]
    artifact = found["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact["uriBaseId"] == "SRCROOT"
    assert artifact["uri"].isascii()
    assert not set(artifact["uri"]) & set(" #?:\\")
    assert os.fsencode(unquote(artifact["uri"], errors="surrogateescape")) == os.fsencode(os.path.normpath(path))


def test_files_elsewhere_are_absolute(own_folder: Path) -> None:
    def artifact_of(path: str) -> dict[str, str]:
        (found,) = run_of(lint_result(make_finding(path=path)))["results"]
        place: dict[str, str] = found["locations"][0]["physicalLocation"]["artifactLocation"]
        return place

    assert artifact_of("/else where/model.py") == {"uri": "file:///else%20where/model.py"}
    assert artifact_of("../model.py") == {"uri": (own_folder.parent / "model.py").as_uri()}
    assert artifact_of(str(own_folder / "train.py")) == {"uri": "train.py", "uriBaseId": "SRCROOT"}


def test_fixes_are_replacements_by_file() -> None:
    (found,) = run_of(lint_result(odd_finding()))["results"]
    (fix,) = found["fixes"]
    first, second = fix["artifactChanges"]
    assert first["replacements"] == [
        {
            "deletedRegion": {"startLine": 5, "startColumn": 9, "endLine": 5, "endColumn": 9},
            "insertedContent": {"text": "x = "},
        }
    ]
    assert second["artifactLocation"]["uri"] == "other.py"


def test_a_notebook_is_named_by_cell_and_gets_no_lines_of_its_file() -> None:
    edit = Edit("notes.ipynb", 2, 5, 2, 9, "", cell=3)
    finding = make_finding(place=Place("notes.ipynb", 2, 5, 2, 9, cell=3), fix=Fix("Drop it.", (edit,), "safe"))
    (found,) = run_of(lint_result(finding))["results"]
    assert found["locations"] == [
        {
            "physicalLocation": {"artifactLocation": {"uri": "notes.ipynb", "uriBaseId": "SRCROOT"}},
            "logicalLocations": [{"name": "cell 3, line 2"}],
        }
    ]
    assert found["message"]["text"].startswith("cell 3, line 2: The loss ")
    assert "fixes" not in found


def test_what_a_comment_silences_is_suppressed() -> None:
    ignored = make_finding("G10", line=9)
    result = lint_result(make_finding(), ignored=(Diagnosis(lead=ignored, findings=(ignored,)),))
    found = run_of(result)["results"]
    assert [(item["ruleId"], item["suppressions"]) for item in found] == [("O12", []), ("G10", [{"kind": "inSource"}])]


def test_what_could_not_be_read_is_a_notification() -> None:
    (invocation,) = run_of(everything())["invocations"]
    assert invocation["executionSuccessful"] is False
    told = invocation["toolExecutionNotifications"]
    assert [item["message"]["text"][:6] for item in told] == ["bad.py", "gone.p", "rule O"]
    assert told[0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 3
    assert run_of(lint_result())["invocations"][0]["executionSuccessful"] is True


def fingerprints(result: Result) -> list[str]:
    return [found["partialFingerprints"]["unstuckFinding/v1"] for found in run_of(result)["results"]]


def test_fingerprints_survive_lines_that_come_and_go() -> None:
    before = fingerprints(lint_result(make_finding(line=5), make_finding(line=9)))
    Path("train.py").write_text("# one more\n\n" + SCRIPT)
    assert fingerprints(lint_result(make_finding(line=7), make_finding(line=11))) == before
    assert len(set(before)) == 2


def test_fingerprints_of_equal_lines_differ() -> None:
    Path("train.py").write_text("f(x)\nf(x)\n")
    twice = fingerprints(lint_result(make_finding(line=1), make_finding(line=2)))
    assert len(set(twice)) == 2


def test_every_severity_has_a_level() -> None:
    assert set(LEVELS) == set(PROBLEMS) == set(Severity)


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def f(:\n")
    assert main(["lint", ".", "--format", "sarif"]) == 2
    log = json.loads(capsys.readouterr().out)
    assert schemas.mistakes(log, schemas.SARIF) == []
    assert len(log["runs"][0]["invocations"][0]["toolExecutionNotifications"]) == 1


CLIPPED_LATE = """\
import torch
from torch import nn

model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    loss = model(torch.randn(16, 8)).square().mean(); "ü\U0001f600"
    loss.backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.zero_grad()
"""


def test_a_fix_made_as_sarif_says_removes_the_finding(capsys: pytest.CaptureFixture[str]) -> None:
    Path("late.py").write_text(CLIPPED_LATE, encoding="utf-8")
    assert main(["lint", "late.py", "--format", "sarif", "--select", "G01"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    (change,) = found["fixes"][0]["artifactChanges"]
    text = CLIPPED_LATE
    starts = [0, *(index + 1 for index, letter in enumerate(text) if letter == "\n")]

    def offset(region: dict[str, int], end: str) -> int:
        return starts[region[f"{end}Line"] - 1] + region[f"{end}Column"] - 1

    for made in sorted(change["replacements"], key=lambda item: offset(item["deletedRegion"], "start"), reverse=True):
        region = made["deletedRegion"]
        text = text[: offset(region, "start")] + made["insertedContent"]["text"] + text[offset(region, "end") :]
    assert text != CLIPPED_LATE
    Path("late.py").write_text(text, encoding="utf-8")
    assert main(["lint", "late.py", "--select", "G01"]) == 0
