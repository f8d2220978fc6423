"""A record survives what happens to files, and says clearly when it did not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from unstuck.events import (
    RECORD_VERSION,
    Backward,
    Crash,
    Gauges,
    InputFact,
    LossCall,
    ModelSeen,
    NonFinite,
    Note,
    OptimizerSeen,
    Place,
    RunEnded,
    RunStarted,
    TensorFact,
    TensorGauges,
)
from unstuck.record import RECORD_NAME, RecordError, Writer, has_ended, read
from unstuck.regular import NotRegular


def written(folder: Path, *events, **options) -> Path:
    writer = Writer(folder / "run", **options)
    for event in events:
        writer(event)
    writer.close()
    return folder / "run"


def test_what_is_written_is_read(tmp_path):
    events = (
        RunStarted(script="train.py", arguments=("--lr", "1")),
        Backward(step=3, place=Place("train.py", 7, 2), value=0.5, requires_grad=True),
        Note(text="näive ☃"),
        RunEnded(steps=4),
    )
    run = written(tmp_path, *events)
    record = read(run)
    assert record.events == events
    assert record == read(run / RECORD_NAME)
    assert record.started == events[0]
    assert record.ended == events[-1]
    assert not record.incomplete
    assert record.crash is None
    assert [note.text for note in record.notes] == ["näive ☃"]
    assert list(record.of(Backward, Note)) == list(events[1:3])


def test_losses_leave_out_what_is_not_finite(tmp_path):
    gauges = [Gauges(step=4, loss=1.5), Gauges(step=5, loss=float("nan")), Gauges(step=6, loss=0.5)]
    assert read(written(tmp_path, RunStarted(), *gauges)).losses == [(4, 1.5), (6, 0.5)]


def test_losses_of_a_run_that_never_steps_are_counted(tmp_path):
    gauges = [Gauges(loss=1.0), Gauges(loss=0.5)]
    assert read(written(tmp_path, RunStarted(), *gauges)).losses == [(0, 1.0), (1, 0.5)]


def test_setup_shows_the_last_state_and_each_call_site_once(tmp_path):
    here, there = Place("a.py", 1), Place("a.py", 2)
    record = read(
        written(
            tmp_path,
            RunStarted(),
            ModelSeen(model="Net", kind="old"),
            ModelSeen(model="Net", kind="new"),
            OptimizerSeen(optimizer="SGD", rates=(0.1,)),
            OptimizerSeen(optimizer="SGD", rates=(0.2,)),
            *(LossCall(loss="mse_loss", place=place) for place in (here, here, there)),
            *(Backward(place=here, value=value) for value in (1.0, 2.0)),
        )
    )
    setup = record.setup()
    assert [model.kind for model in setup.models] == ["new"]
    assert [optimizer.rates for optimizer in setup.optimizers] == [(0.2,)]
    assert [loss.place for loss in setup.losses] == [here, there]
    assert [backward.value for backward in setup.backwards] == [1.0]


def test_a_torn_last_line_is_dropped(tmp_path):
    run = written(tmp_path, RunStarted(), Note(text="kept"), RunEnded())
    file = run / RECORD_NAME
    file.write_bytes(file.read_bytes()[:-5])
    record = read(run)
    assert record.incomplete
    assert record.ended is None
    assert [note.text for note in record.notes] == ["kept"]


@given(cut=st.integers(min_value=0, max_value=400))
def test_a_record_cut_anywhere_reads_as_a_prefix(tmp_path_factory, cut):
    whole = (RunStarted(script="s"), Note(text="one"), Gauges(step=1, loss=2.0), RunEnded())
    run = written(tmp_path_factory.mktemp("cut"), *whole)
    file = run / RECORD_NAME
    content = file.read_bytes()
    file.write_bytes(content[:cut])
    if b"\n" not in content[:cut]:
        with pytest.raises(RecordError):
            read(run)
        return
    kept = content[:cut].count(b"\n")
    assert read(run).events == whole[:kept]


def test_events_of_a_newer_version_are_skipped(tmp_path):
    run = written(tmp_path, RunStarted())
    with (run / RECORD_NAME).open("ab") as file:
        file.write(b'{"event":"moon-phase","light":0.5}\n{"event":"note","text":"after","new":1}\n')
    assert [type(event) for event in read(run).events] == [RunStarted, Note]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no complete event"),
        (b"hello\nworld\n", "is not a record"),
        (b"\x00\xff\xfe\n", "is not a record"),
        (b'{"event":"note"}\n', "is not a record"),
        (b'{"event":"note"}\n{"event":"note"}\nhello\nworld\n', "is not a record"),
        (b"x\n" * 20_000, "more than 10,000 lines that are not events"),
        (b'{"event":"run-started"}\n' + b"[" * 70 * 2**20, "larger than any record"),
        (b'{"event":"run-started","version":%d}\n' % (RECORD_VERSION + 1), "newer unstuck"),
    ],
    ids=lambda given: given[:40].decode(errors="replace") if isinstance(given, bytes) else "",
)
def test_what_is_not_a_record_is_refused_in_one_sentence(tmp_path, content, sentence):
    file = tmp_path / "events.jsonl"
    file.write_bytes(content)
    with pytest.raises(RecordError, match=sentence) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


DAMAGE = [
    b'{"event":"no',
    b"",
    b"\x00" * 50,
    b"\xff\xfe",
    b'{"event":"gauges","loss":"x"}',
    b'{"event":"gauges","new":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"event":"losses-between","steps":[1,2],"values":[1.0]}',
    b'{"event":"tensors-named","names":["a","b"],"kinds":["Linear"]}',
]


@pytest.mark.parametrize("line", DAMAGE, ids=lambda line: line[:30].decode(errors="replace"))
@pytest.mark.parametrize("number", [2, 3])
def test_a_damaged_line_is_skipped_and_counted(tmp_path, line, number):
    events = (RunStarted(script="s"), Note(text="one"), Note(text="two"), RunEnded())
    run = written(tmp_path, *events)
    lines = (run / RECORD_NAME).read_bytes().splitlines()
    (run / RECORD_NAME).write_bytes(b"\n".join([*lines[: number - 1], line, *lines[number - 1 :]]) + b"\n")
    record = read(run)
    assert record.events == events
    assert record.damaged_lines == (number,)
    assert not record.incomplete


def test_a_record_without_its_first_line_is_read_if_it_is_ours(tmp_path):
    events = (Backward(value=0.5), Note(text="one"), RunEnded())
    run = written(tmp_path, RunStarted(script="s"), *events)
    file = run / RECORD_NAME
    content = file.read_bytes()
    file.write_bytes(content[5:])
    assert (read(run).events, read(run).damaged_lines) == (events, (1,))
    assert read(run).started == RunStarted()
    file.write_bytes(content[content.index(b"\n") + 1 :])
    assert (read(run).events, read(run).damaged_lines) == (events, ())


def a_pipe(path):
    os.mkfifo(path)


def a_socket(path):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def a_directory(path):
    path.mkdir()


def a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [a_pipe, a_socket, a_directory, a_device])
def test_what_is_not_a_file_is_refused_unread(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / RECORD_NAME)
    with pytest.raises(RecordError) as caught:
        read(tmp_path)
    sentence = f"{tmp_path / RECORD_NAME} is {make.__name__.replace('_', ' ')}, not a record; give the folder of a run."
    assert str(caught.value) == sentence
    with pytest.raises(NotRegular):
        has_ended(tmp_path)


def test_what_is_not_finite_is_unknown_where_it_may_be(tmp_path):
    """Rules reckon with numbers that may be None, and only with finite ones."""
    nan = float("nan")
    record = read(
        written(
            tmp_path,
            RunStarted(),
            Gauges(step=1, loss=nan, rates=(float("inf"),)),
            TensorGauges(grad_norm=(1.0, nan, None), weight_norm=(nan,)),
            LossCall(input=TensorFact(low=nan, high=2.0), value=float("inf")),
            Crash(inputs=(InputFact("x", mean=nan, value=nan),)),
        )
    )
    gauges, tensors, call, crash = record.events[1:]
    assert gauges == Gauges(step=1, loss=None, rates=(float("inf"),))
    assert tensors == TensorGauges(grad_norm=(1.0, None, None), weight_norm=(None,))
    assert call == LossCall(input=TensorFact(high=2.0))
    assert crash.inputs[0].mean is None
    assert crash.inputs[0].value == "NaN"


def test_a_missing_record(tmp_path):
    with pytest.raises(RecordError, match="There is no record at"):
        read(tmp_path)
    with pytest.raises(RecordError, match="There is no record at"):
        read(tmp_path / "nowhere")


def test_an_existing_record_is_not_overwritten(tmp_path):
    run = written(tmp_path, RunStarted(), Note(text="first"))
    before = (run / RECORD_NAME).read_bytes()
    with pytest.raises(RecordError, match="already a record"):
        Writer(run)
    assert (run / RECORD_NAME).read_bytes() == before


def test_after_the_budget_only_the_outcome_is_kept(tmp_path):
    noise = [Gauges(step=step, loss=1.0) for step in range(200)]
    outcome = (NonFinite(what="loss"), Crash(kind="ValueError"), RunEnded())
    run = written(tmp_path, RunStarted(), *noise, *outcome, budget=1000)
    record = read(run)
    assert 0 < len(list(record.of(Gauges))) < 100
    assert "budget" in record.notes[0].text
    assert tuple(record.events[-3:]) == outcome
    assert (run / RECORD_NAME).stat().st_size < 2000


def test_a_disk_that_fills_up_stops_the_recording_only(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "run")
    writer(RunStarted())

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        writer(Note(text="lost"))
    writer(Note(text="ignored"))
    writer.close()
    assert writer.warning
    assert "No space left" in writer.warning
    assert len(read(tmp_path / "run").events) == 1


def test_nothing_follows_a_line_of_which_only_a_part_was_written(tmp_path):
    resource = pytest.importorskip("resource")
    writer = Writer(tmp_path / "run")
    writer(RunStarted())
    file = tmp_path / "run" / RECORD_NAME
    size, limits = file.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))  # the kernel then writes ten bytes more
    try:
        writer(Note(text="cut"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer(RunEnded())
    writer.close()
    assert file.stat().st_size == size + 10
    assert writer.warning == f"Recording to {file} stopped: the disk is full."
    record = read(tmp_path / "run")
    assert [type(event) for event in record.events] == [RunStarted]


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    writer = Writer(tmp_path / "file" / "run")
    writer(RunStarted())
    writer.close()
    assert writer.warning
    assert "stopped" in writer.warning


def test_records_are_read_without_torch(tmp_path):
    run = written(tmp_path, RunStarted(), RunEnded())
    code = f"import sys, unstuck.record as r; r.read({str(run)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
