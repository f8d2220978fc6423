"""A disk that is full, read-only or not to be filled stops the recording and says so once; the training goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from trainings import bits

from unstuck.capture import Session
from unstuck.capture.story import Story
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
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2).backward()
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


def in_a_child(folder: Path, action: Callable[[], object]) -> tuple[int, str, str]:
    """Exit code, output and errors of what is done in a fork of this process, which has torch ready."""
    pipes = [os.pipe(), os.pipe()]  # a file would be as limited as the record
    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            _do(folder, action, [writing for _, writing in pipes])
        os._exit(99)
    texts = []
    for reading, writing in pipes:
        os.close(writing)
        with open(reading) as stream:
            texts.append(stream.read())
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), texts[0], texts[1]


def _do(folder: Path, action: Callable[[], object], streams: list[int]) -> None:
    os.environ.pop("UNSTUCK_RAISE", None)
    os.chdir(folder)
    with open(streams[0], "w") as sys.stdout, open(streams[1], "w") as sys.stderr:
        code = action()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def watched(prepare: Callable[[], None]) -> Callable[[], object]:
    def action() -> int:
        prepare()
        return main(["run", "--quiet", "train.py"])

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
    code, output, errors = in_a_child(folder, watched(files_may_grow_to(size)))
    assert output == bare_output(folder)
    assert len(ours(errors)) == 1, errors
    assert "stopped" in errors
    assert "Traceback" not in errors
    assert code == (0 if size else 2)
    if size:
        (file,) = folder.glob(".unstuck/runs/*/events.jsonl")
        assert file.stat().st_size <= size
        assert read(file).incomplete


def read_only(folder: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("to root no directory is read-only")
    folder.chmod(0o555)


def something_in_the_way(folder: Path) -> None:
    (folder / ".unstuck").write_text("")


@pytest.mark.parametrize("obstacle", [read_only, something_in_the_way], ids=lambda obstacle: obstacle.__name__)
def test_a_directory_that_cannot_be_written(folder: Path, obstacle: Callable[[Path], None]):
    obstacle(folder)
    code, output, errors = in_a_child(folder, watched(lambda: None))
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
    story = Story(writer, session)
    story.begin(script="train.py", arguments=(), source=None)
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
    story.end(RuntimeError("x" * 3000))
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
