"""The reference: one large batch, stepped by hand, as the textbook has it. And small models to compare on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

FEATURES = 5


def small_model(seed: int = 0) -> nn.Sequential:
    """A small model, the same for each seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def data(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    return inputs, torch.randint(0, 3, (rows,), generator=generator)


def optimizer_of(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum, or AdamW, with a learning rate that lets differences show."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # With its usual eps Adam divides rounding errors by their own size where a gradient is 0.
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)


def parts_of(rows: int, sizes: Sequence[int]) -> list[slice]:
    """Consecutive micro-batches of the given sizes."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    assert ends[-1] == rows
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def windows(parts: Sequence[slice], accumulate: int) -> Iterator[slice]:
    """The large batches that windows of micro-batches stand for; the last one may be smaller."""
    for index in range(0, len(parts), accumulate):
        group = parts[index : index + accumulate]
        yield slice(group[0].start, group[-1].stop)


def by_hand(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    labels: Tensor,
    large: Sequence[slice],
    *,
    reduction: str = "mean",
    max_norm: float | None = None,
) -> list[float]:
    """Train on large batches; the norms of the gradients are returned."""
    norms = []
    for part in large:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs[part]), labels[part], reduction=reduction)
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), max_norm or float("inf"))))
        optimizer.step()
    return norms


def weights(model: nn.Module) -> Tensor:
    """All weights in one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
