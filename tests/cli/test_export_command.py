"""`unstuck export`: every number of a run, as a table that a spreadsheet can read safely."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.view.records import events_of_a_run, written
from unstuck import cli
from unstuck.events import TensorGauges, TensorsNamed


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_number_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / ".unstuck" / "runs" / "20260101-120000-train", *events_of_a_run(25, 2))
    assert cli.main(["export"]) == 0
    found = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [int(row["step"]) for row in found if row["gauge"] == "loss"] == list(range(25))
    (ratio,) = (r for r in found if (r["step"], r["gauge"], r["layer"]) == ("20", "update_ratio", "blocks.1.weight"))
    assert float(ratio["value"]) == pytest.approx(1e-3 * 1.5)
    assert ratio["optimizer"] == "Adam"


def test_names_are_quoted_and_never_formulas(tmp_path: Path) -> None:
    names = ('=cmd|"/c calc"!A1', "a,b", "half \ud800")
    named = TensorsNamed(
        optimizer="@x",
        names=names,
        kinds=("",) * 3,
        sizes=(1,) * 3,
        dimensions=(1,) * 3,
        groups=(0,) * 3,
        depths=(0,) * 3,
    )
    written(tmp_path / "run", named, TensorGauges(optimizer="@x", step=1, weight_norm=(1.0, 2.0, 3.0)))
    assert cli.main(["export", "run", "--output", "run.csv"]) == 0
    with Path("run.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["layer"] for row in found] == ['\'=cmd|"/c calc"!A1', "a,b", "half ?"]
    assert {row["optimizer"] for row in found} == {"'@x"}


def test_a_run_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
