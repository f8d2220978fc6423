"""A script or a run that is not there, or is something else, is refused at once, with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck import cli
from unstuck.events import RunEnded, RunStarted
from unstuck.record.lines import encode
from unstuck.record.runs import new_run_folder

RUNS = Path(".unstuck/runs")
WITH_SCRIPT = ("run", "diagnose", "prove", "overfit", "relations")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command says that ends before it has started or recorded anything."""
    before = sorted(Path().rglob("*"))
    assert cli.main(words) == 2
    assert sorted(Path().rglob("*")) == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said.removeprefix("unstuck: ").rstrip("\n")


def write_record(name: str) -> None:
    folder = RUNS / name
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(encode(RunStarted(script="train.py")) + encode(RunEnded()))


@pytest.mark.parametrize("verb", WITH_SCRIPT)
def test_a_folder_is_refused_with_a_script_in_it(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("project").mkdir()
    for name in ("data.py", "train.py", "zebra.py"):
        Path("project", name).write_text("")
    assert refused(capsys, verb, "project") == "project is a folder; name a script in it, such as project/train.py."
    assert refused(capsys, verb, "project/") == "project/ is a folder; name a script in it, such as project/train.py."


@pytest.mark.parametrize("words", [("old", "new.py"), ("new.py", "old")])
def test_either_version_may_be_a_folder(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("old").mkdir()
    Path("old", "new.py").write_text("")
    Path("new.py").write_text("")
    assert refused(capsys, "compare", *words) == "old is a folder; name a script in it, such as old/new.py."


@pytest.mark.parametrize(
    ("files", "likely"),
    [
        ({"a.py": "", "fit.py": "loss.backward()"}, "fit.py"),
        ({"a.py": "", "src/fit.py": "loss.backward()"}, "src/fit.py"),
        ({"setup.py": "", "main.py": ""}, "main.py"),
        ({"src/only.py": ""}, "src/only.py"),
    ],
)
def test_the_script_that_trains_is_named(
    files: dict[str, str], likely: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    assert refused(capsys, "run", ".") == f". is a folder; name a script in it, such as {likely}."


def test_a_folder_without_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    assert refused(capsys, "diagnose", "data") == "data is a folder without a script in it; name a script."


@pytest.mark.parametrize("word", ["trian.py", "train"])
def test_a_misspelled_script(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text("")
    assert refused(capsys, "diagnose", word) == f"there is no file {word}; did you mean train.py?"
    assert refused(capsys, "compare", "train.py", word) == f"there is no file {word}; did you mean train.py?"


@pytest.mark.parametrize("verb", ["report", "view", "export"])
def test_a_misspelled_run(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_record("20260101-120000-train")
    write_record("20260102-120000-train")
    write_record("20260103-120000-other")
    both = "20260102-120000-train or 20260101-120000-train"
    assert refused(capsys, verb, "train") == f"there is no run 'train' here; did you mean {both}?"
    assert refused(capsys, verb, "20260103-120000-othr").endswith("did you mean 20260103-120000-other?")
    assert refused(capsys, verb, "x/y") == "there is no run 'x/y' here; without a name, the newest is taken."


@pytest.mark.parametrize("option", ["--no-open", "--terminal"])
def test_only_a_run_is_viewed(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    Path("notes.txt").write_text("")
    write_record("20260101-120000-train")
    for word in ("data", "notes.txt"):
        said = f"{word} is not a run; `unstuck view` without a name shows the newest one here."
        assert refused(capsys, "view", option, word) == said
    assert refused(capsys, "view", option, str(RUNS)) == f"{RUNS} holds all runs; name one of them."


def test_a_run_that_had_to_go_elsewhere_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    Path(".unstuck").write_text("not a folder")
    folder, moved = new_run_folder("train.py")
    assert moved
    (folder / "events.jsonl").write_bytes(encode(RunStarted(script="train.py")) + encode(RunEnded()))
    assert cli.main(["report", folder.name]) == 0
    assert "train.py finished" in capsys.readouterr().out
