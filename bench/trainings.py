"""What it costs to watch several trainings in one program: python bench/trainings.py [trainings] [steps in all].

Prints the CPU time of the same steps, watched, as one training and as several, and the ratio. Each pair runs in turn.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from time import process_time

import torch
from torch import nn
from torch.nn import functional as F

from unstuck.capture import watching

ROUNDS = 5


def train(trainings: int, steps: int) -> float:
    """CPU seconds of so many steps, watched, shared out among so many models and optimizers."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 20)
    labels = (inputs[:, 0] > 0).long()
    with tempfile.TemporaryDirectory() as folder, watching(Path(folder) / "run"):
        began = process_time()
        for _ in range(trainings):
            model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for _ in range(steps // trainings):
                rows = torch.randint(0, 512, (32,))
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
                optimizer.step()
        return process_time() - began


def main() -> None:
    """Compare one training with several."""
    trainings, steps = (int(word) for word in (sys.argv[1:] + ["9", "2700"][len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    train(1, 100)  # what torch imports with the first optimizer
    pairs = [(train(1, steps), train(trainings, steps)) for _ in range(ROUNDS)]
    one, several = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(after / before for before, after in pairs)
    print(f"1 training: {one:.2f} s, {trainings} trainings: {several:.2f} s of CPU, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
