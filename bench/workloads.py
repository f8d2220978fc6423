"""The training loops that benchmarks measure: the same four everywhere, on made data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Workload(NamedTuple):
    """A model in training; `step(after_backward)` takes one step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]

    def run(self, steps: int, before_step: Callable[[], None] = lambda: None) -> None:
        """The loop everyone writes."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss().backward()
            before_step()
            self.optimizer.step()


def mlp() -> Workload:
    """784-256-10 on batches of 64."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return _classifier(model, torch.randn(64, 784))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))


def gpt() -> Workload:
    """10 million parameters, 4 sequences of 128 tokens."""
    words, width = 512, 384
    embedding, head = nn.Embedding(words, width), nn.Linear(width, words)
    model = nn.Sequential(embedding, *(Block(width, 6) for _ in range(5)), nn.LayerNorm(width), head)
    tokens = torch.randint(0, words, (4, 129))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss() -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Workload(model, optimizer, loss)


class Residual(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        same = stride == 1 and before == width
        self.around = nn.Identity() if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both ways, added."""
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.around(x))


def resnet() -> Workload:
    """ResNet-18 on 16 images of 32 x 32."""
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    strides = [1, 1, 2, 1, 2, 1, 2, 1]
    befores = [64, *widths]
    blocks = [Residual(*shape) for shape in zip(befores, widths, strides, strict=False)]
    stem = (nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return _classifier(model, torch.randn(16, 3, 32, 32))


class Reader(nn.Module):
    """An LSTM that reads a sequence and names its class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(256, 128),
            nn.LSTM(128, 256, 2, batch_first=True),
            nn.Linear(256, 10),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """From the last state."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


def lstm() -> Workload:
    """Two layers of 256 over 32 sequences of 64."""
    return _classifier(Reader(), torch.randint(0, 256, (32, 64)))


def many_tensors(count: int = 10_000) -> Workload:
    """A model of very many small parameters, of which each step updates all."""
    model = nn.ParameterList([nn.Parameter(torch.randn(8, 8)) for _ in range(count)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Workload(model, optimizer, lambda: torch.stack([p.square().mean() for p in model]).mean())


def _classifier(model: nn.Module, inputs: Tensor) -> Workload:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.randint(0, 10, (len(inputs),))
    return Workload(model, optimizer, lambda: F.cross_entropy(model(inputs), labels))


ALL = {"mlp": mlp, "gpt": gpt, "resnet": resnet, "lstm": lstm}
