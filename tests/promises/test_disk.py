"""A disk that is full, read-only or not to be filled stops the recording and says so once; the training goes on."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from children import in_a_child
from torch import nn
from trainings import bits

from unstuck.capture import Session
from unstuck.capture.launch.run_events import RunEvents
from unstuck.cli import main
from unstuck.events import Note, TensorGauges
from unstuck.record import Writer, read
from unstuck.record.writer import DISK_BUDGET

SCRIPT = """\
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    optimizer.zero_grad()
    x = torch.randn(8, 4)
    torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
    optimizer.step()
print("trained", model.weight.sum().item().hex())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where other users may look, which pytest's own folders are not."""
    place = Path(tempfile.mkdtemp(prefix="promise-"))
    place.chmod(0o755)
    (place / "train.py").write_text(SCRIPT)
    yield place
    place.chmod(0o755)
    shutil.rmtree(place)


def watched(prepare: Callable[[], None], *options: str) -> Callable[[], object]:
    def action() -> int:
        prepare()
        return main(["run", *options, "train.py"])

    return action


def bare_output(folder: Path) -> str:
    code, output, _ = in_a_child(folder, lambda: exec(compile(SCRIPT, "train.py", "exec"), {}))
    assert code == 0
    assert output.startswith("trained")
    return output


def ours(errors: str) -> list[str]:
    return [line for line in errors.splitlines() if line.startswith("unstuck:")]


def files_may_grow_to(size: int) -> Callable[[], None]:
    """As on a full disk: the last write that fits is cut short, the next one fails."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    return limit


@pytest.mark.parametrize("size", [0, 3000, 20_000], ids=["from the start", "early", "late"])
def test_a_full_disk(folder: Path, size: int):
    code, output, errors = in_a_child(folder, watched(files_may_grow_to(size), "--quiet"))
    assert output == bare_output(folder)
    assert len(ours(errors)) == 1, errors
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert code == 0
    if size:
        (file,) = folder.glob(".unstuck/runs/*/events.jsonl")
        assert file.stat().st_size <= size
        assert read(file).incomplete


@pytest.mark.parametrize("ending", ["", "raise SystemExit(7)"], ids=["well", "with a code"])
def test_a_script_that_ends_on_a_full_disk_was_not_killed(folder: Path, ending: str):
    with (folder / "train.py").open("a") as script:
        script.write(ending)
    code, _, errors = in_a_child(folder, watched(files_may_grow_to(20_000)))
    assert code == (7 if ending else 0)
    assert errors.count("─── unstuck") == 1, errors
    assert f"train.py ended with exit code {code}; its record stops after" in errors
    assert "killed" not in errors


NO_NAMESPACE = 77
SMALL = 20 * 2**20
FLOOR = SMALL // 10
LONG = """
import os
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(100)])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.ones(8, 4)).backward()
    optimizer.step()
disk = os.statvfs(".")
print("free", disk.f_bavail * disk.f_frsize)
with open("weights.pt", "wb") as file:
    file.write(bytes(disk.f_bavail * disk.f_frsize))
os.remove("weights.pt")
"""


def on_a_small_disk(free: int) -> None:
    """A file system of its own around the working directory, of which only so many bytes are free."""
    here, user, group, libc = os.getcwd(), os.getuid(), os.getgid(), ctypes.CDLL(None, use_errno=True)
    new_user_and_mounts = 0x10000000 | 0x00020000
    if libc.unshare(new_user_and_mounts):
        os._exit(NO_NAMESPACE)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    assert libc.mount(b"tmpfs", os.fsencode(here), b"tmpfs", 0, b"size=%d" % SMALL) == 0
    os.chdir(here)
    Path("train.py").write_text(LONG)
    disk = os.statvfs(".")
    Path("others").write_bytes(bytes(disk.f_bavail * disk.f_frsize - free))


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/user"), reason="needs namespaces of Linux")
@pytest.mark.parametrize("free", [FLOOR + 2**19, FLOOR // 2, 2**15], ids=["enough at first", "little", "nothing"])
def test_the_last_bytes_of_a_disk_are_left_to_the_program(folder: Path, free: int):
    def action() -> int:
        on_a_small_disk(free)
        code = main(["run", "--every", "1", "train.py"])
        main(["report"])
        return code

    code, output, errors = in_a_child(folder, action)
    if code == NO_NAMESPACE:
        pytest.skip("namespaces are refused here")
    assert code == 0, errors
    assert "Traceback" not in errors
    assert "was killed, left by" not in errors + output
    left = int(output.split("free ")[1].split()[0])
    assert left >= min(free, FLOOR) - 2**19, errors
    if free < 2**16:
        assert "stopped: the disk is full." in errors
        assert left >= free // 2
    else:
        for report in (errors, output):
            assert report.count("The disk is almost full; after this only the outcome is kept.") == 1
            assert "train.py finished after 60 optimizer steps" in report


def read_only(folder: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("to root no directory is read-only")
    folder.chmod(0o555)


def something_in_the_way(folder: Path) -> None:
    (folder / ".unstuck").write_text("")


@pytest.mark.parametrize("obstacle", [read_only, something_in_the_way], ids=lambda obstacle: obstacle.__name__)
def test_a_directory_that_cannot_be_written(folder: Path, obstacle: Callable[[Path], None]):
    obstacle(folder)
    code, output, errors = in_a_child(folder, watched(lambda: None, "--quiet"))
    assert (code, output) == (0, bare_output(folder))
    assert len(ours(errors)) == 1, errors
    assert "cannot be written here" in errors
    elsewhere = Path(errors.split("the record goes to ")[1].split(", because")[0])
    assert read(elsewhere).ended is not None
    shutil.rmtree(elsewhere)


def many_tensors(count: int) -> nn.Module:
    return nn.ParameterList([torch.full((2,), 1.0 + index) for index in range(count)])


def recorded(folder: Path, budget: int, model: nn.Module, steps: int, every: int | None) -> Path:
    writer = Writer(folder, budget=budget)
    session = Session(writer, every=every)
    run = RunEvents(writer, session)
    run.begin(script="train.py", arguments=(), source=None)
    session.install()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    try:
        for _ in range(steps):
            optimizer.zero_grad()
            F.mse_loss(torch.cat(list(model.parameters())), torch.zeros(2 * len(list(model.parameters())))).backward()
            optimizer.step()
    finally:
        session.remove()
    for step in range(300):
        writer(Note(step=step, text="a note that comes again and again"))
    run.end(RuntimeError("x" * 3000))
    writer.close()
    return writer.path


@pytest.mark.parametrize("every", [None, 1], ids=["by default", "every step"])
@pytest.mark.parametrize("budget", [20_000, 100_000])
def test_the_budget_is_never_exceeded(tmp_path: Path, budget: int, every: int | None):
    path = recorded(tmp_path / "run", budget, many_tensors(40), 120, every)
    record = read(path)
    assert path.stat().st_size <= budget
    assert record.ended is not None
    assert not record.incomplete
    assert any("reached its budget" in note.text for note in record.notes) == (path.stat().st_size > budget // 3)


def test_very_many_tensors(tmp_path: Path):
    """One that does not fit is left out, and everything after it but the outcome."""
    path = recorded(tmp_path / "run", 400_000, many_tensors(3000), 5, 1)
    assert path.stat().st_size <= 400_000
    record = read(path)
    assert record.ended is not None
    assert sum("reached its budget" in note.text for note in record.notes) == 1


@pytest.mark.slow
def test_very_many_tensors_for_long(tmp_path: Path):
    """By default, gauges come ever more rarely, so that there are some to the end."""
    model = many_tensors(3000)
    before = bits(list(model.parameters()))
    path = recorded(tmp_path / "run", DISK_BUDGET, model, 500, 1)
    assert bits(list(model.parameters())) != before
    assert path.stat().st_size <= DISK_BUDGET
    gauges = [gauge.step for gauge in read(path).of(TensorGauges)]
    assert max(gauges) > 400
