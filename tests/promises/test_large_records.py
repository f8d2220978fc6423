"""The largest record there can be is judged in seconds, and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck.events import (
    Activations,
    Backward,
    Clip,
    Event,
    Forward,
    Gauges,
    LossCall,
    ModelSeen,
    OptimizerSeen,
    OptimizerStep,
    ParameterFact,
    Place,
    RunStarted,
    SchedulerSeen,
    SchedulerStep,
    TensorFact,
    TensorGauges,
    TensorsNamed,
    ZeroGrad,
)
from unstuck.record import Writer
from unstuck.record.store import DISK_BUDGET

HERE = [Place("train.py", line, 5, line, 40, "train") for line in range(20)]
NAMES = tuple(f"layers.{index}.weight" for index in range(20))
SECONDS = 30
"""Of the processor. On a machine of its own it takes a third; before, it took minutes."""


def beginning() -> Iterator[Event]:
    facts = tuple(ParameterFact(name, index, (64, 64)) for index, name in enumerate(NAMES))
    yield RunStarted(script="train.py")
    yield ModelSeen(model="Net", kind="Net", parameters=facts, place=HERE[1])
    yield OptimizerSeen(optimizer="SGD", kind="SGD", parameters=facts, rates=(0.1,), place=HERE[2])
    yield SchedulerSeen(kind="StepLR", scheduler="StepLR", optimizer="SGD", rates=(0.1,), place=HERE[3])
    count = len(NAMES)
    columns = (4096,) * count, (2,) * count, (0,) * count, tuple(range(count))
    named = dict(zip(("sizes", "dimensions", "groups", "depths"), columns, strict=True))
    yield TensorsNamed(optimizer="SGD", names=NAMES, kinds=("Linear",) * count, **named)


def turn(step: int) -> Iterator[Event]:
    row = tuple(1e-3 + index * 1e-7 + step * 1e-9 for index in range(len(NAMES)))
    loss = 2.3 + (step * 7919 % 100) / 1000
    yield Forward(step=step, model="Net", place=HERE[4])
    scores = TensorFact((32, 10), "float32", -3.0, 3.0, requires_grad=True)
    yield LossCall(step=step, loss="cross_entropy", input=scores, value=loss, place=HERE[5])
    yield Backward(step=step, value=loss, requires_grad=True, place=HERE[6])
    yield Clip(step=step, limit=1.0, norm=0.5, with_grad=20, parameters=20, place=HERE[7])
    yield OptimizerStep(step=step, optimizer="SGD", parameters=20, with_grad=20, grad_norm=0.5, place=HERE[8])
    yield ZeroGrad(step=step, optimizer="SGD", cleared=20, place=HERE[9])
    yield SchedulerStep(step=step, kind="StepLR", scheduler="StepLR", rates=(0.1,), count=step + 1, place=HERE[10])
    yield Gauges(step=step, optimizer="SGD", loss=loss, grad_norm=0.5, rates=(0.1,))
    if step % 4 == 0:
        yield TensorGauges(step=step, optimizer="SGD", grad_norm=row, weight_norm=row, update_ratio=row)
        acts = ("relu",) * 10
        yield Activations(step=step, names=acts, kinds=acts, zero=row[:10], dead=row[:10], saturated=row[:10])


@pytest.mark.slow
def test_the_largest_record_is_judged_in_seconds(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for event in beginning():
        writer(event)
    step = 0
    while writer.path.stat().st_size < DISK_BUDGET - 2**18:
        for event in turn(step):
            writer(event)
        step += 1
    writer.close()
    assert writer.path.stat().st_size > DISK_BUDGET - 2**19
    with (tmp_path / "report.txt").open("w+") as shown:
        process = subprocess.Popen([sys.executable, "-m", "unstuck", "report", str(tmp_path)], stdout=shown)
        _, status, used = os.wait4(process.pid, 0)
        shown.seek(0)
        assert " → " in shown.read()
    assert os.waitstatus_to_exitcode(status) in (0, 1)
    assert used.ru_utime < SECONDS
    assert used.ru_maxrss < 500_000


def test_more_events_than_we_write_are_refused(tmp_path: Path) -> None:
    """Small enough for the limit of bytes, and many enough to fill the memory."""
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"event":"run-started"}\n' + b'{"event":"zero-grad"}\n' * 1_100_000)
    done = subprocess.run([sys.executable, "-m", "unstuck", "report", str(file)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "larger than any record unstuck writes" in done.stderr
