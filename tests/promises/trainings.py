"""Small trainings of every kind, and everything one leaves behind, to the last bit."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STEPS = 200
CLASSES = 3


class Way(NamedTuple):
    """Which model is trained by which optimizer, and how."""

    model: str
    optimizer: str
    how: str

    def __str__(self) -> str:
        return "-".join(self)


class Tokens(nn.Module):
    """A transformer with dropout over whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, sequence: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # not every processor has an LSTM of half precision
            states = self.lstm(sequence)[0]
        return self.head(states[:, -1])


class Waves(nn.Module):
    """Complex weights and activations, real scores."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 6, dtype=torch.complex64)
        self.head = nn.Linear(6, CLASSES, dtype=torch.complex64)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(inputs))).abs()


def _convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(48, CLASSES)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES)),
        lambda: torch.randn(8, 6),
    ),
    "convolution": (_convolution, lambda: torch.randn(8, 1, 6, 6)),
    "transformer": (Tokens, lambda: torch.randint(0, 10, (8, 5))),
    "lstm": (Recurrent, lambda: torch.randn(8, 5, 4)),
    "sparse-embedding": (
        lambda: nn.EmbeddingBag(10, CLASSES, sparse=True, mode="sum"),
        lambda: torch.randint(0, 10, (8, 5)),
    ),
    "complex": (Waves, lambda: torch.randn(8, 4, dtype=torch.complex64)),
}
OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adamw-for-loop": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2),
    "sparse-adam": lambda p: torch.optim.SparseAdam(list(p), 0.01),
}
HOWS = ("eager", "compile", "autocast", "scaler", "accumulation", "checkpointing")


def sensible(way: Way) -> bool:
    """Does torch support it?"""
    model, optimizer, how = way
    if model == "sparse-embedding":
        return optimizer in ("sgd", "sparse-adam") and how != "compile"  # sparse gradients have no compiled form
    if optimizer == "sparse-adam" or (optimizer == "lbfgs" and how == "scaler"):  # no closures under a scaler
        return False
    return model != "complex" or (optimizer != "adamw-fused" and how not in ("autocast", "scaler"))


ALL = [way for way in itertools.starmap(Way, itertools.product(MODELS, OPTIMIZERS, HOWS)) if sensible(way)]


def few_with_all_pairs(ways: list[Way]) -> list[Way]:
    """A small part of them in which every pair that occurs at all still occurs."""

    def pairs(way: Way) -> set[tuple[tuple[int, str], ...]]:
        return set(itertools.combinations(enumerate(way), 2))

    missing = set().union(*map(pairs, ways))
    chosen = []
    while missing:
        best = max(ways, key=lambda way: len(pairs(way) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def train(way: Way, steps: int = STEPS, backend: str = "eager") -> dict[str, object]:
    """Everything the training leaves behind."""
    seed()
    build, draw = MODELS[way.model]
    model = build()
    optimizer = (
        torch.optim.SGD(model.parameters(), 0.05)  # momentum would need dense gradients
        if (way.model, way.optimizer) == ("sparse-embedding", "sgd")
        else OPTIMIZERS[way.optimizer](model.parameters())
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 60)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=40) if way.how == "scaler" else None
    with _compiling(way.how):
        called = torch.compile(model, backend=backend) if way.how == "compile" else model
        losses = [_step(way, called, optimizer, scaler, draw) for _ in _scheduled(scheduler, steps)]
    return {
        "losses": losses,
        "weights and buffers": bits(model.state_dict()),
        "optimizer": bits(optimizer.state_dict()),
        "scheduler": bits(scheduler.state_dict()),
        "scaler": bits(scaler.state_dict() if scaler else None),
        "gradients": bits([p.grad for p in model.parameters()]),
        "versions": [p._version for p in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()] + [sorted(vars(optimizer))],
        "random": random_states(),
    }


@contextlib.contextmanager
def _compiling(how: str) -> Iterator[None]:
    """Begin and end with nothing compiled."""
    if how != "compile":
        yield
        return
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()


def _scheduled(scheduler: torch.optim.lr_scheduler.LRScheduler, steps: int) -> Iterator[int]:
    for step in range(steps):
        yield step
        scheduler.step()


def _step(way: Way, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any, draw: Callable) -> float:
    parts = 3 if way.how == "accumulation" else 1
    batches = []
    for _ in range(parts):
        inputs = draw()
        if inputs.is_floating_point():
            inputs = inputs + 0.01 * random.random() + float(np.random.normal(0, 0.01))
        batches.append((inputs, torch.randint(0, CLASSES, (8,))))

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, labels in batches:
            loss = _loss(way, model, inputs, labels) / parts
            (scaler.scale(loss) if scaler else loss).backward()
            total += loss.detach()
        if scaler:
            scaler.unscale_(optimizer)
        if way.model != "sparse-embedding":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return total

    if scaler:
        total = closure()
        scaler.step(optimizer)
        scaler.update()
        return float(total)
    if way.optimizer == "lbfgs":
        return float(optimizer.step(closure))
    total = closure()
    optimizer.step()
    return float(total)


def _loss(way: Way, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=way.how in ("autocast", "scaler")):
        if way.how == "checkpointing":
            scores = checkpoint(model, inputs, use_reentrant=False)
        else:
            scores = model(inputs)
        return F.cross_entropy(scores, labels)


def random_states() -> tuple[object, ...]:
    """Of torch, python and numpy."""
    return bits(torch.get_rng_state()), random.getstate(), repr(np.random.get_state())


def bits(value: Any) -> Any:
    """The same for the same bits, and only then."""
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            value = value.detach().coalesce()
            return ("sparse", tuple(value.shape), bits(value.indices()), bits(value.values()))
        plain = value.detach().contiguous()
        return str(plain.dtype), tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return [(key, bits(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [bits(inner) for inner in value]
    return repr(value)
