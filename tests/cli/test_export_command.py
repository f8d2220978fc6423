"""`unstuck export`: every number of a run, as a table that a spreadsheet can read safely."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.view.records import events_of_a_run, written
from unstuck import cli
from unstuck.events import TensorGauges, TensorsNamed
from unstuck.tfevents.reader import scalars


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


def test_parquet_holds_the_same_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed here")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    written(tmp_path / "run", *events_of_a_run(25, 2))
    assert cli.main(["export", "run"]) == 0
    table = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert cli.main(["export", "run", "--format", "parquet", "--output", "run.parquet"]) == 0
    found = pandas.read_parquet("run.parquet")
    assert found["step"].dtype == "int64"
    texts = ["step", "gauge", "layer", "optimizer"]
    assert found[texts].astype(str).values.tolist() == [[row[name] for name in texts] for row in table]
    assert found["value"].tolist() == [float(row["value"]) for row in table]


def test_parquet_of_a_run_without_numbers(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed here")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    written(tmp_path / "run")
    assert cli.main(["export", "run", "--format", "parquet", "--output", "run.parquet"]) == 0
    assert len(pandas.read_parquet("run.parquet")) == 0


def test_tensorboard_gets_what_forwarding_would_have_written(tmp_path: Path) -> None:
    written(tmp_path / "run", *events_of_a_run(25, 2))
    assert cli.main(["export", "run", "--format", "tensorboard", "--output", "board"]) == 0
    (file,) = Path("board").iterdir()
    found = list(scalars(file))
    assert [one.step for one in found if one.tag == "unstuck/loss"] == list(range(25))
    assert "unstuck_update_ratio/blocks.1.weight" in {one.tag for one in found}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--format", "parquet"], 2, "--format parquet is not text; name a file with --output."),
        (["--format", "tensorboard"], 2, "--format tensorboard writes into a folder; name it with --output."),
        (["--format", "tensorboard", "--output", "file"], 2, "cannot write file: it is a file; name a folder."),
        (["--format", "tensorboard", "--output", "full"], 2, "cannot write full: it holds an event file already"),
        (["--format", "tensorboard", "--output", "file/below"], 2, "cannot write file/below: Not a directory."),
    ],
)
def test_what_cannot_be_written(
    words: list[str], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "run", *events_of_a_run(25, 2))
    Path("file").write_text("")
    Path("full").mkdir()
    Path("full/events.out.tfevents.1.x").write_text("")
    assert cli.main(["export", "run", *words]) == code
    assert sentence in capsys.readouterr().err


def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "run", *events_of_a_run(25, 2))
    monkeypatch.setattr("unstuck.exports.parquet.NEEDS", "no_such_package")
    assert cli.main(["export", "run", "--format", "parquet", "--output", "run.parquet"]) == 3
    assert (
        "needs no_such_package, which is not installed here: pip install 'unstuck[parquet]'" in capsys.readouterr().err
    )
