"""A repository from elsewhere ships `.unstuck`: nothing outside it is written or removed, and lint works on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unstuck import cli
from unstuck.lint import cache

Unstuck = Callable[..., "subprocess.CompletedProcess[str]"]
NOBODY = 65534
LARGE = "# a remark that makes the file worth a cache\n" * 500


@pytest.fixture
def unstuck(unstuck: Unstuck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unstuck:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return unstuck


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's, next to the project, that must be the same at the end."""
    folder = tmp_path / "outside"
    for name in ("runs/20200101-000000-mine", "cache", "deep"):
        (folder / name).mkdir(parents=True)
        (folder / name / "weights.pt").write_bytes(b"w")
    before = sorted(folder.rglob("*"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("train.py").write_text("import torch\n" + LARGE)
    yield folder
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def few_entries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """How many entries a cache may have here, which is soon too many."""
    monkeypatch.setattr(cache, "MOST_ENTRIES", 100)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users cache"))
    return 100


def calm(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.parametrize("link", [".unstuck", ".unstuck/cache", ".unstuck/runs"])
def test_a_link_is_not_followed(unstuck: Unstuck, outside: Path, link: str) -> None:
    Path(link).parent.mkdir(exist_ok=True)
    Path(link).symlink_to(outside / Path(link).name if link != ".unstuck" else outside)
    calm(unstuck("lint", "."))
    refused = [["clean", "--keep", "0"]]
    if link != ".unstuck/cache":
        refused += [["report"]]
    for words in refused:
        done = unstuck(*words)
        assert done.returncode == 2
        assert done.stderr == (
            f"unstuck: {Path(link).absolute()} is a link, and unstuck only writes to a folder of its own; "
            "remove the link.\n"
        )
        assert done.stdout == ""


TRAINING = """import torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    layer(torch.ones(3, 2)).pow(2).mean().backward()
    optimizer.step()
print("went on")
raise SystemExit(5)
"""


@pytest.mark.parametrize("link", [".unstuck", ".unstuck/runs"])
def test_a_script_runs_and_its_record_goes_elsewhere_where_there_is_a_link(
    unstuck: Unstuck, outside: Path, link: str, tmp_path: Path
) -> None:
    Path(link).parent.mkdir(exist_ok=True)
    Path(link).symlink_to(outside)
    Path("train.py").write_text(TRAINING)
    done = unstuck("run", "train.py")
    assert (done.returncode, done.stdout) == (5, "went on\n")
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"unstuck: the record goes to {tmp_path}/unstuck-")
    assert first.endswith(
        f", because {Path(link).absolute()} is a link, and unstuck only writes to a folder of its own; remove the link."
    )
    assert (Path(first.split()[5].rstrip(",")) / "events.jsonl").exists()


@pytest.mark.slow
def test_a_diagnosis_goes_elsewhere_too(unstuck: Unstuck, outside: Path) -> None:
    Path(".unstuck").symlink_to(outside)
    Path("train.py").write_text(TRAINING.replace("raise SystemExit(5)", ""))
    done = unstuck("diagnose", "--budget", "15s", "train.py")
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr.count("is a link") == 1
    assert "was watched for" in done.stdout


def test_a_cache_that_is_a_link_to_a_large_folder_is_not_pruned(outside: Path, few_entries: int) -> None:
    large = outside.parent / "large"
    large.mkdir()
    for number in range(few_entries + 10):
        (large / f"{number:032x}").touch()
    Path(".unstuck").mkdir()
    Path(".unstuck/cache").symlink_to(large)
    assert cli.main(["lint", "."]) == 0
    assert len(os.listdir(large)) == few_entries + 10


def test_names_that_are_not_ours_are_not_pruned(outside: Path, few_entries: int) -> None:
    folder = Path(".unstuck/cache")
    folder.mkdir(parents=True)
    for number in range(few_entries + 10):
        (folder / f"{number:032x}").touch()
    foreign = {"weights.pt", "f" * 31, "f" * 33, "F" * 32, "f" * 32 + ".txt", "\udcff"}
    for name in foreign:
        (folder / name).touch()
    (folder / ("e" * 32)).mkdir()
    (folder / ("d" * 32)).symlink_to(outside)
    assert cli.main(["lint", "."]) == 0
    left = set(os.listdir(folder))
    assert foreign | {"e" * 32} <= left
    assert len(left) < few_entries


@pytest.mark.parametrize("verb", ["lint", "run"])
def test_a_gitignore_that_is_a_dangling_link_makes_no_file(unstuck: Unstuck, outside: Path, verb: str) -> None:
    Path(".unstuck").mkdir()
    Path(".unstuck/.gitignore").symlink_to(outside / "made.txt")
    assert unstuck(verb, "train.py").returncode == 0
    assert not (outside / "made.txt").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("theirs", [".unstuck", ".unstuck/runs", ".unstuck/cache"])
def test_a_folder_of_another_user_is_left_alone(unstuck: Unstuck, outside: Path, theirs: str) -> None:
    Path(theirs).mkdir(parents=True)
    os.chown(theirs, NOBODY, NOBODY)
    calm(unstuck("lint", "."))
    of_another = f"{Path(theirs).absolute()} belongs to another user (nobody); remove it"
    done = unstuck("clean")
    assert done.returncode == 2
    assert done.stderr.startswith(f"unstuck: {of_another}")
    done = unstuck("run", "train.py")
    assert done.returncode == 0
    assert (of_another in done.stderr) == (not theirs.endswith("cache"))
    assert os.listdir(theirs) == []


WATCHED = "import unstuck\nw = unstuck.watch(print=True)\nw.stop()\nprint('went on')\n"


def test_a_program_that_watches_itself_goes_on(outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    Path(".unstuck").symlink_to(outside)
    Path("watched.py").write_text(WATCHED)
    done = subprocess.run([sys.executable, "watched.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert "is a link" in done.stderr


def entry_of(unstuck: Unstuck) -> Path:
    """The one entry that linting the script makes."""
    calm(unstuck("lint", "."))
    (entry,) = (path for path in Path(".unstuck/cache").iterdir())
    return entry


@pytest.mark.parametrize("kind", ["pipe", "zero", "huge", "folder", "locked", "text", "hard link"])
def test_an_entry_that_is_none_is_as_if_it_were_not_there(unstuck: Unstuck, outside: Path, kind: str) -> None:
    entry = entry_of(unstuck)
    before = entry.read_bytes()
    entry.unlink()
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "zero":
        entry.symlink_to("/dev/zero")
    elif kind == "huge":
        with entry.open("wb") as file:
            file.truncate(2**40)
    elif kind == "folder":
        entry.mkdir()
    elif kind == "hard link":
        os.link(outside / "deep" / "weights.pt", entry)
    else:
        entry.write_bytes(b"no entry" * 100)
        entry.chmod(0 if kind == "locked" else 0o644)
    calm(unstuck("lint", "."))
    if kind != "folder":
        assert entry.read_bytes() == before
    assert (outside / "deep" / "weights.pt").read_bytes() == b"w"


def test_a_folder_that_is_not_a_run_keeps_what_it_calls_a_layer(unstuck: Unstuck) -> None:
    """Only folders with names of runs hold layers of ours."""
    for name in ("mine", "20260101-000000-train"):
        Path(".unstuck/runs", name, "layer").mkdir(parents=True)
        Path(".unstuck/runs", name, "layer", "x").write_text("x")
        Path(".unstuck/runs", name, "probe").mkdir()
    assert unstuck("clean").returncode == 0
    assert Path(".unstuck/runs/mine/layer/x").exists()
    assert Path(".unstuck/runs/mine/probe").exists()
    assert not list(Path(".unstuck/runs/20260101-000000-train").iterdir())
