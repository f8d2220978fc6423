"""Whatever of ours fails, wherever: the training ends in the same bits, and the record says so once."""

from __future__ import annotations

import contextlib
import os
import random
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_leaves_no_trace import state_of_torch
from torch import nn
from trainings import bits, random_states, seed

import unstuck
from unstuck.capture import watching
from unstuck.record import read

FAST, ALL = 60, 500
SHORT, LONG = 15, 60
"""Steps: only the long runs come to windows that are not recorded."""
FAULTS: tuple[Callable[[], Exception], ...] = (
    lambda: ValueError("a fault"),
    lambda: RuntimeError("a fault"),
    lambda: KeyError("a fault"),
    lambda: AttributeError("a fault"),
    lambda: AssertionError("a fault"),
    lambda: RecursionError("a fault"),
    lambda: MemoryError("a fault"),
    lambda: OSError(28, "a fault"),
    lambda: ReferenceError("a fault"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a fault"),
    lambda: StopIteration("a fault"),
    lambda: torch.OutOfMemoryError("a fault"),
)

OURS = os.path.dirname(unstuck.__file__) + os.sep
SAFE = tuple(
    os.path.join(OURS, "capture", *names)
    for names in (("torch_hooks", "patches.py"), ("torch_hooks", "weaving.py"), ("guard.py",))
)
"""What catches the faults."""
UNGUARDED = {"__exit__", "__del__", "note", "generate"}
"""What runs outside and only leaves a block, forgets an object, or hands on parameters to who iterates over them."""


def train(steps: int, step_begins: Callable[[int], None] = lambda step: None) -> list[object]:
    """A bit of everything that is watched."""
    seed()
    step_begins(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    inputs, labels = torch.randn(8, 4), torch.arange(8) % 3
    losses = []
    for step in range(steps):
        step_begins(step + 1)
        model.train(step % 10 != 5)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.item())
    model.load_state_dict(model.state_dict())
    return [losses, bits(model.state_dict()), bits(optimizer.state_dict()), random_states()]


class Calls:
    """Counts calls of our own functions in each step, or lets one of them fail, at its beginning."""

    def __init__(self, step: int | None = None, call: int = 0, fault: Exception | None = None) -> None:
        self.counts = [0] * (LONG + 1)
        self.failed: str | None = None
        self._step = 0
        self._fail_in, self._fail_at, self._fault = step, call, fault
        self._known: dict[CodeType, bool] = {}

    def step_begins(self, step: int) -> None:
        """Look at calls from the step on in which one is to fail: to look takes time."""
        self._step = step
        if self._fail_in is None or (step >= self._fail_in and not self.failed):
            sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._may_fail(frame.f_code):
            return
        self.counts[self._step] += 1
        if self._fault is not None and sum(self.counts) >= self._fail_at:
            self.failed = frame.f_code.co_qualname
            sys.setprofile(None)
            raise self._fault

    def _may_fail(self, code: CodeType) -> bool:
        known = self._known.get(code)
        if known is None:
            file, name = code.co_filename, code.co_name
            known = file.startswith(OURS) and file not in SAFE and name not in UNGUARDED
            self._known[code] = known
        return known


@cache
def bare(steps: int) -> list[object]:
    return train(steps)


@cache
def calls_by_step(steps: int) -> list[int]:
    calls = Calls()
    run(steps, calls, Path(os.devnull) / "nowhere")
    return calls.counts


def run(steps: int, calls: Calls, folder: Path) -> list[object]:
    with watching(folder):
        try:
            return train(steps, calls.step_begins)
        finally:
            sys.setprofile(None)


def try_fault(number: int, folder: Path) -> None:
    """The fault of this number: its kind and place are drawn, always the same way."""
    draw = random.Random(number)
    steps = SHORT if number % 5 else LONG
    counts = calls_by_step(steps)
    (step,) = draw.choices(range(LONG + 1), counts)
    calls = Calls(step, draw.randint(1, counts[step]), draw.choice(FAULTS)())
    untouched = state_of_torch()
    watched = run(steps, calls, folder)
    where = f"fault {number} in {calls.failed} at step {step}"
    assert calls.failed, where
    assert watched == bare(steps), where
    assert state_of_torch() == untouched, where
    record = read(folder)
    parts = [re.search(r"while watching (.*) \(", note.text) for note in record.notes]
    told = [part.group(1) for part in parts if part]
    assert len(told) == len(set(told)), where
    assert record.ended is not None, where
    assert record.ended.status == "finished", where


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for users: what fails is not raised again."""
    monkeypatch.delenv("UNSTUCK_RAISE")


@pytest.mark.parametrize("start", range(0, FAST, 10))
def test_a_fault_anywhere_leaves_the_training_as_it_is(tmp_path: Path, start: int):
    for number in range(start, start + 10):
        try_fault(number, tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FAST, ALL, 20))
def test_many_faults(tmp_path: Path, start: int):
    for number in range(start, start + 20):
        try_fault(number, tmp_path / str(number))


def test_a_part_that_always_fails_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unstuck.capture.torch_hooks.patches import Patches

    observer = Patches._observer

    def always_failing(self: Patches, name: str, function: Any) -> Any:
        def failing(*_: Any) -> None:
            raise FAULTS[len(name) % len(FAULTS)]()

        return observer(self, name, failing)

    monkeypatch.setattr(Patches, "_observer", always_failing)
    with watching(tmp_path / "run"):
        assert train(SHORT) == bare(SHORT)
    notes = [note.text for note in read(tmp_path / "run").notes]
    assert len(notes) == len(set(notes)) > 10
    assert all(note.startswith("unstuck failed while watching ") for note in notes)


def test_a_record_that_cannot_be_written_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unstuck.record import Writer

    def failing(self: Writer, line: bytes) -> None:
        raise MemoryError("a fault")

    monkeypatch.setattr(Writer, "_append", failing)
    with contextlib.suppress(MemoryError), watching(tmp_path / "run"):
        assert train(SHORT) == bare(SHORT)
