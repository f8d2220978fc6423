"""A run that is being written: read piece by piece, judged now and then, listed among others."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import tracemalloc
import urllib.request
from pathlib import Path

import pytest

from tests.view.records import events_of_a_run, written
from unstuck import cli
from unstuck.events import Gauges, NonFinite, RunEnded, RunStarted
from unstuck.record.in_use import lock
from unstuck.record.lines import encode
from unstuck.record.pace import CREDIT, SHORTEST, Pace
from unstuck.record.tail import Tail
from unstuck.view.live import Followed, Runs
from unstuck.view.terminal import show


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstuck.record.pace.SHORTEST", 0.0)
    monkeypatch.setattr("unstuck.record.pace.CREDIT", 1e9)


def test_a_tail_reads_only_whole_lines_and_each_once(tmp_path: Path) -> None:
    written(tmp_path / "run", Gauges(step=0, loss=2.0), ended=False)
    file = tmp_path / "run" / "events.jsonl"
    tail = Tail(tmp_path / "run")
    assert tail.look()
    assert not tail.look()
    line = encode(Gauges(step=1, loss=1.0))
    with file.open("ab") as stream:
        stream.write(line[:20])
        stream.flush()
        assert not tail.look()
        stream.write(line[20:] + b"damaged\n" + b'{"event":"of-a-newer-version"}\n')
    assert tail.look()
    record = tail.record()
    assert record.losses == [(0, 2.0), (1, 1.0)]
    assert record.damaged_lines == (4,)
    assert tail.size == file.stat().st_size


def test_a_record_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    written(tmp_path / "run", *(Gauges(step=step, loss=2.0) for step in range(9)))
    tail = Tail(tmp_path / "run")
    tail.look()
    written(tmp_path / "run", Gauges(step=0, loss=5.0))
    assert tail.look()
    assert tail.record().losses == [(0, 5.0)]


def test_work_takes_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace, spent = Pace(0.01), 0.0
    for _ in range(100_000):
        now[0] += 0.1
        if pace.is_due():
            pace.spent(0.5)
            spent += 0.5
    assert 0.009 * 10_000 < spent <= 0.01 * 10_000 + CREDIT
    now[0] += 10_000
    pace.spent(0.001)
    now[0] += SHORTEST / 2
    assert not pace.is_due()


def test_a_run_is_followed_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    folder = written(tmp_path / "run", *events_of_a_run(50, 2), ended=False)
    followed = Followed(folder)
    with (folder / "events.jsonl").open("ab", buffering=0) as record:
        lock(record.fileno())  # as the process that writes it does
        assert followed.refresh()
        assert followed.document is not None
        assert followed.document.run.running
        assert followed.document.answer.findings == []
        assert not followed.refresh(), "there is nothing new"
        record.write(encode(NonFinite(step=50, what="loss", value="nan")))
        record.write(b"".join(encode(Gauges(step=step, loss=None)) for step in range(50, 60)))
        assert followed.refresh()
        found = {finding.code: finding.step for finding in followed.document.answer.findings}
        assert found
        record.write(encode(RunEnded(steps=60)))
    assert followed.refresh()
    assert not followed.document.run.running
    assert {f.code: f.step for f in followed.document.answer.findings}.items() >= found.items()
    assert followed.version == 3


def test_a_killed_run_does_not_stay_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    folder = written(tmp_path / "run", *events_of_a_run(30, 1), ended=False)
    with (folder / "events.jsonl").open("ab") as record:
        lock(record.fileno())
        followed = Followed(folder)
        followed.refresh()
        assert followed.document is not None
        assert followed.document.run.running
    assert followed.refresh()
    assert not followed.document.run.running
    assert "was killed" in followed.document.run.status


def test_a_run_before_its_first_step_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with (folder / "events.jsonl").open("wb", buffering=0) as record:
        lock(record.fileno())
        record.write(encode(RunStarted(script="train.py")))
        followed = Followed(folder)
        assert followed.refresh()
        assert followed.document is not None
        assert followed.document.answer.headline == "Waiting for the first training step."
        assert followed.document.run.steps == 0


def test_the_list_of_runs_knows_verdicts_ranks_and_curves(tmp_path: Path) -> None:
    runs = tmp_path / ".unstuck" / "runs"
    written(runs / "20260101-115959-train-rank0", *events_of_a_run(60, 1))
    written(runs / "20260101-120000-train-rank1", *events_of_a_run(60, 1))
    written(runs / "20260101-130000-train-rank0", *events_of_a_run(60, 1))
    written(runs / "20260102-090000-other", *events_of_a_run(60, 1), script="other.py")
    (runs / "20260103-090000-empty").mkdir()
    known = Runs()
    assert known.look()
    assert [summary.headline for summary in known.summaries()] == [""] * 4
    while known.summarise_one():
        pass
    other, later, second, first = known.summaries()
    assert (other.script, other.when, other.steps, len(other.spark)) == ("other.py", "2026-01-02 09:00", 60, 60)
    assert other.headline.startswith("Nothing found in 60 steps")
    assert (first.rank, second.rank) == (0, 1)
    assert first.job == second.job
    assert len({first.job, later.job, other.job}) == 3


def test_a_diagnosis_is_shown_by_its_watched_run(tmp_path: Path) -> None:
    folder = tmp_path / ".unstuck" / "runs" / "20260101-120000-train"
    written(folder / "01-watched", *events_of_a_run(40, 1), script="first.py")
    written(folder / "02-with-fix", *events_of_a_run(40, 1), script="second.py")
    followed = Followed(folder)
    assert followed.refresh()
    assert followed.document is not None
    assert followed.document.run.script == "first.py"


def test_the_terminal_shows_answer_curve_and_layers(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", *events_of_a_run(100, 3))
    stream = io.StringIO()
    assert show(folder, stream) == 0
    text = stream.getvalue()
    assert "train.py finished, 100 optimizer steps" in text
    assert "Nothing found in 100 steps" in text
    assert "Update : weight  healthy: 0.0001 to 0.01" in text
    assert "blocks.2.weight" in text
    assert "\x1b" not in text


def test_a_run_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["view", "nowhere"]) == 2
    assert "there is no run 'nowhere' here" in capsys.readouterr().err
    assert cli.main(["view", "--terminal"]) == 2
    assert "unstuck run train.py" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "why"), [(None, " (a pipe)"), (b"", ""), (b"no record\n", "")])
def test_a_record_that_cannot_be_shown_is_one_sentence(
    content: bytes | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.jsonl"
    os.mkfifo(file) if content is None else file.write_bytes(content)
    assert cli.main(["view", "--terminal", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"unstuck: There is no record to show at {tmp_path}{why}; make one with `unstuck run`.\n"
    )


def test_a_tail_of_a_file_without_lines_is_bounded(tmp_path: Path) -> None:
    """A file of many gigabytes takes no space on the disk if it is one hole."""
    file = tmp_path / "events.jsonl"
    with file.open("wb") as record:
        record.truncate(64 * 2**30)
    tracemalloc.start()
    try:
        assert not Tail(file).look()
        assert tracemalloc.get_traced_memory()[1] < 300 * 2**20
    finally:
        tracemalloc.stop()


def test_a_port_in_use_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert cli.main(["view", "--no-open", "--port", str(taken.getsockname()[1])]) == 2
    assert capsys.readouterr().err.startswith("unstuck: cannot listen on 127.0.0.1:")


def test_another_host_comes_with_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "unstuck", "view", "--no-open", "--host", "0.0.0.0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "warning: other machines can reach this page" in process.stderr.readline()
        assert "unstuck: the page is at http://127.0.0.1:" in process.stderr.readline()
        process.terminate()


def test_the_page_of_a_run_ends_when_the_run_has_and_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "run", *events_of_a_run(20, 1))
    monkeypatch.setattr("unstuck.cli.verbs.view.STAYS", 0.1)
    monkeypatch.setattr("unstuck.cli.verbs.view._let_go", lambda: None)
    monkeypatch.setattr("unstuck.record.in_use.BEGINNING", 0.0)
    assert cli.main(["view", "--while-running", str(folder)]) == 0
    assert "#run=run, while the script runs and as long as it is open" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_with_its_page_is_an_ordinary_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch\n"
        "w = torch.nn.Linear(3, 1)\n"
        "o = torch.optim.SGD(w.parameters(), 0.1)\n"
        "for _ in range(30):\n"
        "    o.zero_grad(); w(torch.ones(2, 3)).pow(2).mean().backward(); o.step()\n"
        "try:\n"
        "    os.wait()\n"
        "except ChildProcessError:\n"
        "    print('no child')\n"
    )
    command = [sys.executable, "-m", "unstuck", "run", "--view", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "no child\n")
    address = next(word for word in done.stderr.split() if word.startswith("http://127.0.0.1:"))
    with urllib.request.urlopen(address.partition("#")[0], timeout=20) as page:
        assert b'<script src="page.js"></script>' in page.read()
