"""Small trainings whose outcome is known to the last bit, to be run with and without a watch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Model = Callable[[], tuple[nn.Module, Tensor, Tensor]]


def perceptron() -> tuple[nn.Module, Tensor, Tensor]:
    """Two layers on 784 features."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.randn(64, 784), torch.randint(10, (64,))


def convolution() -> tuple[nn.Module, Tensor, Tensor]:
    """With buffers that change and masks that are drawn: BatchNorm and dropout."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(8 * 6 * 6, 5),
    )
    return model, torch.randn(16, 3, 8, 8), torch.randint(5, (16,))


class _Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 7)

    def forward(self, words: Tensor) -> Tensor:
        read: Tensor = self.layer(self.embedding(words)).mean(1)
        return self.head(read)  # type: ignore[no-any-return]


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    """One layer of attention over words."""
    return _Reader(), torch.randint(50, (16, 12)), torch.randint(7, (16,))


MODELS: dict[str, Model] = {
    "MLP": perceptron,
    "conv and dropout": convolution,
    "transformer": transformer,
}


class Loop:
    """A training that can go on for any number of steps."""

    def __init__(self, build: Model) -> None:
        self.model, self._inputs, self._labels = build()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self._criterion = nn.CrossEntropyLoss()

    def train(self, steps: int) -> None:
        """So many steps."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self._criterion(self.model(self._inputs), self._labels).backward()
            self.optimizer.step()


def outcome(build: Model, steps: int) -> dict[str, Any]:
    """All that a seeded training leaves behind: weights, buffers, optimizer state, random numbers."""
    with _random_numbers_kept():
        torch.manual_seed(0)
        random.seed(0)
        loop = Loop(build)
        loop.train(steps)
        states = [value for state in loop.optimizer.state.values() for value in state.values()]
        return {
            "weights": [*loop.model.state_dict().values()],
            "optimizer state": [value for value in states if isinstance(value, Tensor)],
            "random numbers": [torch.get_rng_state(), torch.tensor(random.getstate()[1])],
        }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is not the same to the last bit."""
    return [
        what
        for what, tensors in one.items()
        if len(tensors) != len(other[what])
        or not all(torch.equal(mine, yours) for mine, yours in zip(tensors, other[what], strict=True))
    ]


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(state)
