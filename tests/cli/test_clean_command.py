"""`unstuck clean` removes old runs and the lint cache, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unstuck import cli
from unstuck.record import Writer

Unstuck = Callable[..., "subprocess.CompletedProcess[str]"]
RUNS = Path(".unstuck/runs")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))


def make_runs(amount: int, size: int = 100) -> list[str]:
    names = [f"20260101-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-train" for number in range(amount)]
    for name in names:
        (RUNS / name).mkdir(parents=True)
        (RUNS / name / "events.jsonl").write_bytes(b"x" * size)
    return names


def clean(*words: str) -> int:
    return cli.main(["clean", *words])


def test_all_but_the_newest_go(capsys: pytest.CaptureFixture[str]) -> None:
    names = make_runs(25, size=100_000)
    assert clean("--dry-run", "--keep", "3") == 0
    said = capsys.readouterr().out
    *listed, said = said.splitlines()
    assert sorted(Path(line).name for line in listed) == sorted(names)[:22]
    assert re.fullmatch(r"Would remove 22 runs, which would free 2\.\d+ MB; 3 runs are kept\.", said)
    assert len(os.listdir(RUNS)) == 25
    assert clean() == 0
    assert capsys.readouterr().out.startswith("Removed 5 runs, which freed ")
    assert sorted(os.listdir(RUNS)) == names[5:]
    assert clean("--keep", "1") == 0
    assert os.listdir(RUNS) == names[-1:]
    assert clean("--keep", "0") == 0
    assert capsys.readouterr().out.endswith("; 0 runs are kept.\n")
    assert os.listdir(RUNS) == []
    assert clean("--keep", "0") == 0
    assert capsys.readouterr().out == "Nothing to remove; 0 runs are kept.\n"


def test_where_nothing_was_ever_kept_nothing_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert clean() == 0
    assert capsys.readouterr().out == "Nothing to remove; 0 runs are kept.\n"
    assert os.listdir(".") == []


@pytest.mark.parametrize("word", ["-1", "x", "1.5", "", "²", "9" * 5000])
def test_a_wrong_number_gets_a_sentence(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        clean(f"--keep={word}")
    assert stopped.value.code == 2
    assert "is not a number of runs; use 0 to remove all" in capsys.readouterr().err


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    make_runs(2)
    foreign = ["notes.txt", "good-run", "2026-train", "20260101-000009-train.txt"]
    for name in foreign[1:3]:
        (RUNS / name).mkdir()
    for name in (foreign[0], foreign[3]):
        (RUNS / name).write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "weights.pt").write_text("mine")
    (RUNS / "20250101-000000-link").symlink_to(tmp_path / "mine")
    (RUNS / "20260101-000000-train" / "link").symlink_to(tmp_path / "mine")
    os.link(tmp_path / "mine" / "weights.pt", RUNS / "20260101-000000-train" / "same.pt")
    cache = Path(".unstuck/cache")
    cache.mkdir()
    for name in ("a" * 32, "b" * 32 + ".17.part", "mine.txt"):
        (cache / name).write_text("x")
    assert clean("--keep", "0") == 0
    assert sorted(os.listdir(RUNS)) == sorted([*foreign, "20250101-000000-link"])
    assert os.listdir(cache) == ["mine.txt"]
    assert os.listdir(tmp_path / "mine") == ["weights.pt"]


HOLDS = """
import sys, time
from pathlib import Path
from unstuck.record.in_use import hold
hold(Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_run_in_use_stays_until_its_process_ends(capsys: pytest.CaptureFixture[str]) -> None:
    names = make_runs(3)
    writer = Writer(RUNS / "20250101-000000-writes")
    held = subprocess.Popen([sys.executable, "-c", HOLDS, str(RUNS / names[0])], stdout=subprocess.PIPE)
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == b"ready\n"
        assert clean("--keep", "0") == 0
        assert "2 older runs are in use and not removed.\n" in capsys.readouterr().out
        assert sorted(os.listdir(RUNS)) == ["20250101-000000-writes", names[0]]
    finally:
        held.kill()
        held.communicate()
    writer.close()
    assert clean("--keep", "0") == 0
    assert os.listdir(RUNS) == []


def test_a_run_that_is_just_beginning_stays() -> None:
    new = RUNS / "20260101-000000-train"
    new.mkdir(parents=True)
    assert clean("--keep", "0") == 0
    assert new.is_dir()
    os.utime(new, (0, time.time() - 3600))
    assert clean("--keep", "0") == 0
    assert not new.exists()


RUNNING = "import time, torch\nprint('ready', flush=True)\ntime.sleep(60)\n"


def test_a_script_that_runs_keeps_its_record() -> None:
    Path("train.py").write_text(RUNNING)
    running = subprocess.Popen(
        [sys.executable, "-m", "unstuck", "run", "train.py"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        (name,) = os.listdir(RUNS)
        assert clean("--keep", "0") == 0
        assert os.listdir(RUNS) == [name]
    finally:
        running.kill()
        running.communicate()
    assert clean("--keep", "0") == 0
    assert os.listdir(RUNS) == []


def test_what_cannot_be_removed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = make_runs(3)
    unlink = os.unlink

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        if os.readlink(f"/proc/self/fd/{dir_fd}").endswith(names[1]):
            raise PermissionError(1, "Operation not permitted", name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    assert clean("--keep", "0") == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("Removed 2 runs, which freed ")
    assert shown.err == f"unstuck: cannot remove {RUNS / names[1]}; check the permissions.\n"


@pytest.mark.slow
def test_a_thousand_old_runs_cost_no_time(unstuck: Unstuck) -> None:
    """The bounds are wide: the machine may be busy, and a search through the records would take far longer."""
    Path("empty.py").write_text("")

    def fastest(*words: str) -> float:
        times = []
        for _ in range(3):
            started = time.perf_counter()
            assert unstuck(*words).returncode == 0
            times.append(time.perf_counter() - started)
        return min(times)

    alone = fastest("run", "--quiet", "empty.py"), fastest("report", "latest")
    for number in range(1000):
        folder = RUNS / f"20200101-{number:06}-train"
        folder.mkdir(parents=True)
        (folder / "events.jsonl").write_bytes(b'{"event": "note", "step": 0, "text": "x"}\n' * 100)
    crowded = fastest("run", "--quiet", "empty.py"), fastest("report", "latest")
    assert crowded[0] < alone[0] + 1
    assert crowded[1] < alone[1] + 1
