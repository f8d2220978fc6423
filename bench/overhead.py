"""What watching costs: CPU time of a training loop with and without it, interleaved, one thread.

    python bench/overhead.py [--steps 400] [--rounds 7]

The column "identical" compares the bare loop with itself and tells how much of a ratio is noise.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from unstuck.capture import watching

Loop = Callable[[int], None]


def multilayer_perceptron() -> Loop:
    """784-256-10 on batches of 64."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return training_loop(model, torch.randn(64, 784))


def small_convolution() -> Loop:
    """Two convolutions with batch norm on 16 images of 28 x 28."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 14 * 14, 10),
    )
    return training_loop(model, torch.randn(16, 1, 28, 28))


def training_loop(model: nn.Module, inputs: torch.Tensor) -> Loop:
    """The loop everyone writes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    labels = torch.randint(0, 10, (len(inputs),))

    def loop(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()

    return loop


def cpu_seconds(loop: Loop, steps: int, folder: Path | None) -> float:
    """CPU time of one run, watched if a folder is given."""
    context = watching(folder) if folder else contextlib.nullcontext()
    with context:
        start = time.process_time()
        loop(steps)
        return time.process_time() - start


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':<24}{'bare ms/step':>14}{'watched':>10}{'identical':>11}")
    for build in (multilayer_perceptron, small_convolution):
        loop = build()
        loop(20)
        bare: list[float] = []
        again: list[float] = []
        watched: list[float] = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                bare.append(cpu_seconds(loop, options.steps, None))
                watched.append(cpu_seconds(loop, options.steps, Path(folder) / "run"))
                again.append(cpu_seconds(loop, options.steps, None))
        typical = statistics.median(bare)
        watched_ratio = statistics.median(w / b for w, b in zip(watched, bare, strict=True))
        identical_ratio = statistics.median(a / b for a, b in zip(again, bare, strict=True))
        milliseconds = 1000 * typical / options.steps
        print(f"{build.__name__:<24}{milliseconds:>14.3f}{watched_ratio:>10.2f}{identical_ratio:>11.2f}")


if __name__ == "__main__":
    main()
