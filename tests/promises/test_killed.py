"""A record outlives its process, and a damaged one is read or refused with a sentence."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import time
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import nn

from unstuck.capture import Session
from unstuck.capture.launch.run_events import RunEvents
from unstuck.cli import main
from unstuck.events import Event, RunStarted
from unstuck.record import RECORD_NAME, RecordError, Writer, read


def train_forever(folder: Path, told: int) -> None:
    """Tells, through a pipe, of every event once it is recorded."""
    writer = Writer(folder)

    def record(event: Event) -> None:
        writer(event)
        os.write(told, b".")

    session = Session(record, every=1)
    RunEvents(record, session).begin(script="train.py", arguments=(), source=None)
    session.install()
    steps(10**9)


def steps(count: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 3).backward()
        optimizer.step()


def kill_after(seconds: float, folder: Path) -> int:
    """How many events the process is known to have recorded before SIGKILL."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException):
            os.close(reading)
            train_forever(folder, writing)
        os._exit(1)
    os.close(writing)
    known = len(os.read(reading, 1))  # the clock starts with the first event
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    while part := os.read(reading, 65536):
        known += len(part)
    os.close(reading)
    return known


def check_killed(number: int, folder: Path) -> None:
    known = kill_after(random.Random(number).uniform(0, 0.6), folder)
    record = read(folder)
    assert record.incomplete
    assert len(record.events) in (known, known + 1)  # one may have been recorded and not told any more
    assert isinstance(record.events[0], RunStarted)


@pytest.mark.parametrize("number", range(5))
def test_killed_at_any_time_all_that_was_recorded_is_there(tmp_path: Path, number: int):
    check_killed(number, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5, 40))
def test_killed_at_many_times(tmp_path: Path, number: int):
    check_killed(number, tmp_path / "run")


@cache
def content() -> bytes:
    """A real record."""
    import tempfile

    from unstuck.capture import watching

    with tempfile.TemporaryDirectory() as folder:
        with watching(Path(folder) / "run"):
            steps(6)
        return (Path(folder) / "run" / RECORD_NAME).read_bytes()


def refused_or_read(file: Path) -> bool:
    """Was it read? If not, was that said in one sentence?"""
    try:
        read(file)
    except RecordError as error:
        sentence = str(error)
        assert str(file) in sentence
        assert "\n" not in sentence
        assert sentence.endswith(".")
        return False
    return True


def test_cut_at_every_byte_of_the_last_lines(tmp_path: Path):
    whole = content()
    lines = whole.splitlines(keepends=True)
    events = read_bytes(tmp_path, whole).events
    start = len(whole) - sum(map(len, lines[-3:]))
    for end in range(start, len(whole) + 1):
        record = read_bytes(tmp_path, whole[:end])
        complete = whole[:end].count(b"\n")
        assert record.events == events[:complete]
        assert record.incomplete == (end < len(whole))


def read_bytes(folder: Path, data: bytes):
    file = folder / RECORD_NAME
    file.write_bytes(data)
    return read(file)


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_one_flipped_bit(tmp_path_factory: pytest.TempPathFactory, place: float, bit: int):
    data = bytearray(content())
    data[int(place * len(data))] ^= 1 << bit
    file = tmp_path_factory.getbasetemp() / "flipped.jsonl"
    file.write_bytes(data)
    refused_or_read(file)


@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=12),
    cut=st.floats(0, 1),
)
@settings(max_examples=100, deadline=None)
def test_many_flipped_bytes_and_a_cut(tmp_path_factory: pytest.TempPathFactory, flips, cut: float):
    data = bytearray(content())
    for place, value in flips:
        data[int(place * len(data))] = value
    file = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    file.write_bytes(data[: int(cut * len(data))])
    refused_or_read(file)


@given(place=st.floats(0, 1, exclude_max=True), digit=st.integers(0, 9), bit=st.integers(0, 7))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_report_on_a_damaged_record(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, place: float, digit: int, bit: int
):
    """Digits are exchanged, so that most of these are read and judged; what makes no sense is not a traceback."""
    monkeypatch.delenv("UNSTUCK_RAISE", raising=False)
    data = bytearray(content())
    digits = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
    data[digits[int(place * len(digits))]] = 48 + digit
    if bit == 0:
        data[int(place * len(data))] ^= 1
    file = tmp_path_factory.getbasetemp() / "reported.jsonl"
    file.write_bytes(data)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        code = main(["report", str(file)])
        assert code in (0, 1, 2)
        assert code != 2 or err.getvalue().count("\n") == 1
    assert "Traceback" not in out.getvalue() + err.getvalue()
    assert "please report" not in (out.getvalue() + err.getvalue()).lower()
