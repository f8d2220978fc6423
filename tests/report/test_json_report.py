"""The JSON form: every key is always there, and docs/json.md names it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from fakes import detailed_finding, make_finding, make_record

from unstuck.events import Crash, Place
from unstuck.findings import Diagnosis, Edit, Evidence, Fix
from unstuck.findings.result import Problem, Result
from unstuck.findings.run_summary import run_summary
from unstuck.findings.verdict import Verdict
from unstuck.record.trend import Trend
from unstuck.report.formats import json as report

DOCS = Path(__file__).parents[2] / "docs" / "json.md"


def full_result() -> Result:
    edit = Edit("train.py", 5, 16, 5, 30, "x")
    finding = make_finding(
        fix=Fix("Drop it.", (edit,), "unsafe"),
        evidence=(Evidence("loss", math.nan, place=Place("train.py", 5)),),
    )
    diagnosis = Diagnosis(lead=detailed_finding(), findings=(detailed_finding(), finding))
    crash = Crash(kind="RuntimeError", message="boom", place=Place("train.py", 9))
    verdict = Verdict(
        diagnoses=(diagnosis,),
        unconfirmed=(Diagnosis(lead=finding, findings=(finding,)),),
        trend=Trend("crawling", 640, 2.3, 2.2, -0.04, 0.001, 0.01, 0, 22.0),
        checked=("O12",),
        not_checked=("G10: only a run shows it",),
        failures=("rule O03 failed on train.py: KeyError: 'x'",),
    )
    return Result(
        command="run",
        verdict=verdict,
        run=run_summary(make_record(crash, losses=(2.3,) * 3, arguments=("--lr", "1")), "record", verdict),
        problems=(Problem("bad.py does not parse", Place("bad.py", 3)),),
    )


def read(result: Result) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(report.render(result))
    return document


def keys_of(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in keys_of(item)}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


def test_the_whole_document() -> None:
    document = read(full_result())
    assert document["version"] == 1
    assert document["tool"]["name"] == "unstuck"
    assert document["counts"] == {"error": 1, "warning": 0, "advice": 0}
    assert document["run"]["script"] == "train.py"
    assert document["run"]["status"] == "finished"
    assert document["run"]["crash"]["kind"] == "RuntimeError"
    statistics = {"change": -0.04, "error": 0.001, "noise": 0.01, "spikes": 0, "runs_to_go": 22.0}
    assert document["trend"] == {"word": "crawling", "steps": 640, "first": 2.3, "last": 2.2, **statistics}
    assert [error["message"] for error in document["errors"]] == [
        "bad.py does not parse",
        "rule O03 failed on train.py: KeyError: 'x'",
    ]


def test_a_diagnosis() -> None:
    (diagnosis,) = read(full_result())["diagnoses"]
    assert diagnosis["code"] == "O12"
    assert diagnosis["witnesses"] == ["source", "run"]
    assert diagnosis["place"] == {
        "path": "train.py",
        "cell": 0,
        "line": 5,
        "column": 16,
        "end_line": 5,
        "end_column": 50,
        "function": "Net.forward",
    }
    assert diagnosis["evidence"][0] == {
        "name": "gradient kept",
        "value": 0.1934,
        "unit": "of the right one",
        "threshold": 0.5,
        "place": None,
    }
    assert diagnosis["verify"] == {
        "command": "unstuck run train.py --epochs 3",
        "expect": "no O12 double-softmax",
    }
    assert diagnosis["docs"] == "unstuck explain O12"


def test_what_json_cannot_write_is_null() -> None:
    (unconfirmed,) = read(full_result())["unconfirmed"]
    assert unconfirmed["evidence"][0]["value"] is None
    assert unconfirmed["fix"]["edits"][0]["text"] == "x"


def test_every_key_is_there_even_when_there_is_nothing_to_say() -> None:
    empty = read(Result(command="lint", verdict=Verdict()))
    assert empty.keys() == read(full_result()).keys()
    assert (empty["run"], empty["trend"], empty["diagnoses"]) == (None, None, [])
    bare = make_finding(line=None)
    verdict = Verdict(diagnoses=(Diagnosis(lead=bare, findings=(bare,)),))
    (diagnosis,) = read(Result(command="lint", verdict=verdict))["diagnoses"]
    assert diagnosis.keys() == read(full_result())["diagnoses"][0].keys()
    assert diagnosis["place"] is None


def test_every_key_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", DOCS.read_text(encoding="utf-8")))
    assert keys_of(read(full_result())) <= documented
