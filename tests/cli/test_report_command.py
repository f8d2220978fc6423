from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from unstuck import cli
from unstuck.events import Backward, Event, Gauges, NonFinite, Note, Place, RunEnded, RunStarted
from unstuck.record.lines import encode

RUNS = Path(".unstuck/runs")
Unstuck = Callable[..., subprocess.CompletedProcess[str]]


def write_record(name: str, *events: Event, start: bool = True) -> Path:
    folder = RUNS / name
    folder.mkdir(parents=True)
    first = [RunStarted(script=f"{name}.py")] if start else []
    lines = [encode(event) for event in [*first, *events]]
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    return folder


def test_the_latest_run_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    write_record("20260101-120000-b", RunEnded())
    write_record("20260102-120000-a", RunEnded())
    assert cli.main(["report"]) == 0
    assert "20260102-120000-a.py finished" in capsys.readouterr().out


def test_no_run_on_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report"]) == 2
    assert capsys.readouterr().err == (f"unstuck: there is no run in {RUNS}; record one with: unstuck run train.py\n")


@pytest.mark.parametrize("inside", ["", "events.jsonl"])
def test_a_record_by_folder_or_file(inside: str, capsys: pytest.CaptureFixture[str]) -> None:
    gauges = [Gauges(step=step, loss=2.0) for step in range(1, 40)]
    folder = write_record("run", *gauges, RunEnded(steps=39))
    assert cli.main(["report", "--format", "json", str(folder / inside)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["trend"]["word"], document["run"]["steps"]) == (
        "report",
        "flat",
        39,
    )


def test_a_killed_run_is_reported_as_far_as_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_record("run", Gauges(step=1, loss=2.0), Note(text="compiled model: not watched"))
    with (folder / "events.jsonl").open("ab") as file:
        file.write(b'{"event":"gau')
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "run.py was killed, left by os._exit() or ran out of disk, after at least 1 optimizer step." in shown
    assert "Not checked  compiled model: not watched" in shown
    assert "what came after the last event on record, which has no end" in shown


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\xff\n", b'{"event":"run-ended"}\n', b'{"event":"run-sta'])
def test_what_is_no_record_is_one_sentence(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("events.jsonl").write_bytes(content)
    assert cli.main(["report", "events.jsonl"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("unstuck: ")
    assert "events.jsonl" in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_missing_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_bad_run_does_not_cost_the_others(unstuck: Unstuck) -> None:
    write_record("20260101-120000-good", RunEnded())
    (RUNS / "20260102-120000-empty").mkdir()
    os.mkfifo(write_record("20260103-120000-pipe") / "other.jsonl")
    os.replace(RUNS / "20260103-120000-pipe/other.jsonl", RUNS / "20260103-120000-pipe/events.jsonl")
    (RUNS / "20260104-120000-nowhere").symlink_to("nowhere")
    (RUNS / "20260105-120000-file").write_text("hello")
    (RUNS / "20260106-120000-\udcff").mkdir()
    (RUNS / "20260107-120000-zero").mkdir()
    (RUNS / "20260107-120000-zero/events.jsonl").symlink_to("/dev/zero")
    done = unstuck("report")
    assert done.returncode == 0
    assert "20260101-120000-good.py finished" in done.stdout
    assert all(line.startswith("unstuck: ") for line in done.stderr.splitlines())
    for name in ("empty", "pipe", "zero"):
        assert f"120000-{name}/events.jsonl" in done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "pipe", "link", "folder", "socket"])
def test_what_is_not_a_file_is_one_sentence(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    Path("folder").mkdir()
    os.mkfifo("folder/events.jsonl")
    Path("link").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert cli.main(["report", path]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "not a record" in shown.err


def test_a_damaged_line_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_record("run", Gauges(step=1, loss=2.0), Note(text="x" * 10_000_000), RunEnded(steps=3))
    file = folder / "events.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"hello\n", *lines[1:3], b'{"event":\n', *lines[3:]]))
    told = "what 2 lines of the record say (2, 5): they are damaged and were skipped"
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert " ".join(shown.split()).count(told) == 1
    assert "run.py finished after 3 optimizer steps" in shown
    assert len(shown) < 10_000
    assert cli.main(["report", "--format", "json", str(folder)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["not_checked"].count(told) == 1
    assert len(json.dumps(document)) < 10_000


@pytest.mark.parametrize("script", ["/dev/zero", "pipe", "", "\0", "x" * 10_000, "caf\udce9.py", "/", "~"])
def test_a_record_may_name_any_script(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    place = Place(script, 1, function="\udce9")
    broken = NonFinite(what="loss", place=place)
    folder = write_record("run", RunStarted(script=script), Backward(place=place), broken, RunEnded(), start=False)
    for form in ("text", "json", "sarif", "github", "junit", "concise"):
        assert cli.main(["report", str(folder), "--format", form]) == 1
        assert "G10" in capsys.readouterr().out


def test_a_record_without_its_first_line_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_record("run", *(Gauges(step=step, loss=2.0) for step in range(1, 40)), RunEnded(steps=39))
    file = folder / "events.jsonl"
    file.write_bytes(file.read_bytes()[3:])
    assert cli.main(["report", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "The run finished after 39 optimizer steps" in shown
    assert "2 → 2 in 39 steps" in shown
    assert "what line 1 of the record says" in shown


def test_a_folder_without_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert cli.main(["report", "empty"]) == 2
    assert "empty" in capsys.readouterr().err


PICTURES = """import torch
from torch import nn
torch.manual_seed(0)
x = torch.rand(32, 1, 8, 8)
y = (x[:, 0, :4].mean((1, 2)) > x[:, 0, 4:].mean((1, 2))).long()
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(12):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def test_a_run_can_be_looked_at_as_a_page(capsys: pytest.CaptureFixture[str], unstuck: Unstuck) -> None:
    Path("train.py").write_text(PICTURES)
    done = unstuck("run", "--html", "run.html", "train.py")
    assert done.returncode == 0
    assert f"unstuck: the page is {Path('run.html').absolute()}" in done.stderr
    assert "Sequential received input: float32 [32, 1, 8, 8] from" in done.stderr
    assert "--html page.html" not in done.stderr
    assert cli.main(["report", "latest"]) == 0
    assert "--html page.html" in capsys.readouterr().out
    (run,) = RUNS.iterdir()
    assert cli.main(["report", run.name, "--html", "page.html"]) == 0
    assert capsys.readouterr().err == "unstuck: the page is page.html\n"
    for page in (Path("run.html").read_text(), Path("page.html").read_text()):
        assert page.count('"data:image/png;base64,') == 16 + 2 * 4 + 2
        assert "First-layer filters" in page
        assert "a training batch that came again" in page
        assert "It took 0" not in page


def test_a_page_that_cannot_be_written_is_refused_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--html", "nowhere/page.html"]) == 2
    assert capsys.readouterr().err == "unstuck: cannot write nowhere/page.html: its directory does not exist.\n"
    assert cli.main(["run", "--html", "nowhere/page.html", "train.py"]) == 2
    assert "cannot write nowhere/page.html" in capsys.readouterr().err
    assert cli.main(["report", "--html", "page.html", "--output", "page.html"]) == 2
    assert capsys.readouterr().err == "unstuck: --output and --html both name page.html; name two files.\n"


@pytest.mark.parametrize("option", ["--html", "--output"])
def test_a_report_is_not_written_over_a_script(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_record("run", RunEnded())
    Path("train.py").write_text("print(1)\n")
    assert cli.main(["report", option, "train.py", "run"]) == 2
    assert capsys.readouterr().err == (
        "unstuck: cannot write train.py: it is a file of your own, not a report; name another file.\n"
    )
    assert Path("train.py").read_text() == "print(1)\n"


def test_a_page_is_written_over_pages_only(capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_record("run", RunEnded())
    Path("notes.txt").write_text("mine\n")
    assert cli.main(["report", "--html", "notes.txt", str(folder)]) == 2
    assert "it exists and is not a web page" in capsys.readouterr().err
    Path("page.html").write_text("<!doctype html>")
    assert cli.main(["report", "--html", "page.html", str(folder)]) == 0
