"""The watch needs no more memory the longer a run gets, and keeps none of the program's tensors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unstuck
from unstuck.capture import watching
from unstuck.capture.measure.gauges import MOST_STEPS

OURS = [
    tracemalloc.Filter(True, os.path.join(os.path.dirname(unstuck.__file__), "*")),
    tracemalloc.Filter(True, "*unstuck importlib _bootstrap*"),
]


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.001)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9999)
        self.labels = torch.tensor([0, 1])

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(torch.randn(2, 4)), self.labels).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()


def held() -> tuple[int, int]:
    """Bytes of Python objects that our code has made, and tensors alive in all."""
    gc.collect()
    ours = tracemalloc.take_snapshot().filter_traces(OURS)
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    return sum(trace.size for trace in ours.traces), tensors


def least_held(go_on: Callable[[int], None]) -> tuple[int, int]:
    """The least over the steps that are told in one bundle: what waits to be told comes and goes."""
    seen = []
    for _ in range(4):
        go_on(MOST_STEPS // 4)
        seen.append(held())
    return min(size for size, _ in seen), min(tensors for _, tensors in seen)


@pytest.mark.parametrize("every", [None, pytest.param(1, marks=pytest.mark.slow)], ids=["by default", "every step"])
def test_our_objects_do_not_add_up(tmp_path: Path, every: int | None):
    training = Training()
    steps = 400
    with watching(tmp_path / "run", every=every):
        training.steps(60)
        tracemalloc.start()
        try:
            training.steps(400)  # fills what is remembered for a while
            before, tensors = least_held(training.steps)
            training.steps(steps)
            after, tensors_after = least_held(training.steps)
        finally:
            tracemalloc.stop()
    assert tensors_after <= tensors + MOST_STEPS
    assert after - before < 100 * steps  # which makes 1 MB in 10,000 steps


class Inner(nn.Module):
    """Shows its inner tensors to whoever asks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)
        self.alive: list[weakref.ref[torch.Tensor]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = F.softmax(self.first(inputs), 1)
        self.alive.append(weakref.ref(hidden))
        return self.second(hidden)


def test_tensors_go_when_the_program_drops_them(tmp_path: Path):
    """At once, in recorded windows and in others: on a GPU a tensor that stays a step longer may be one too many."""
    model = Inner()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gc.collect()
    gc.disable()
    try:
        with watching(tmp_path / "run"):
            for step in range(70):
                inputs, labels = torch.randn(2, 4), torch.tensor([0, 1])
                outputs = model(inputs)
                loss = F.cross_entropy(outputs, labels)
                loss.backward()
                optimizer.step()
                gradient = model.first.weight.grad
                optimizer.zero_grad()
                dropped = [weakref.ref(tensor) for tensor in (inputs, labels, outputs, loss, gradient)]
                del inputs, labels, outputs, loss, gradient
                dropped += model.alive
                model.alive.clear()
                assert [reference() for reference in dropped] == [None] * 6, step
    finally:
        gc.enable()


SLOPE = """\
import os, resource, sys, tempfile
sys.path.insert(0, {here!r})
import torch
from test_memory import Training
from unstuck.capture import watching
torch.set_num_threads(1)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

training = Training()
with watching(os.path.join(tempfile.mkdtemp(), "run")):
    training.steps(4000)
    before = resident()
    training.steps(10000)
    print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="tells resident memory on Linux only")
def test_ten_thousand_steps_take_less_than_a_megabyte():
    """In a process of its own. malloc must not keep what was freed, or its habits would be measured."""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
    code = SLOPE.format(here=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**20


@pytest.mark.slow
def test_optimizers_that_come_and_go_do_not_add_up(tmp_path: Path):
    def tasks(count: int) -> None:
        for _ in range(count):
            model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(8)))
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()

    with watching(tmp_path / "run"):
        tasks(300)
        tracemalloc.start()
        try:
            tasks(200)
            before, _ = least_held(tasks)
            tasks(400)
            after, _ = least_held(tasks)
        finally:
            tracemalloc.stop()
    assert after - before < 100 * 400
