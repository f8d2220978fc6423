"""Under `FreezeBatch` a loop works on the same data in every step, however it gets them.

Nothing is learned in these scripts (the rate is 0), so the loss stays the same exactly if the data do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from unstuck.interventions import FreezeBatch, NoDropout
from unstuck.trials.context import Context
from unstuck.trials.runner import Outcome, Program, Runner, Variant

STEPS = 8
HEAD = """
import collections, dataclasses, itertools, random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

torch.manual_seed(0)
X, Y = torch.randn(100, 4), torch.randn(100, 1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)


def step(x, y, loss_fn=F.mse_loss):
    loss = loss_fn(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""
LOOPS = {
    "a DataLoader of tuples": """
for epoch in range(5):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True):
        step(x, y)
""",
    "one that keeps its generator and its last small batch": """
loader = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(1))
for epoch in range(5):
    for x, y in loader:
        step(x, y)
""",
    "dicts": """
class Rows(Dataset):
    def __len__(self):
        return len(X)
    def __getitem__(self, i):
        return {"x": X[i] + 0.1 * torch.randn(4), "y": Y[i], "id": i}

for epoch in range(5):
    for batch in DataLoader(Rows(), batch_size=16, shuffle=True):
        step(batch["x"], batch["y"])
""",
    "objects like a BatchEncoding": """
class Encoding(collections.UserDict):
    def to(self, device):
        return Encoding({key: value.to(device) for key, value in self.items()})
    def __getattr__(self, name):
        if name in self.__dict__.get("data", {}):
            return self.data[name]
        raise AttributeError(name)

def collate(rows):
    return Encoding(x=torch.stack([x for x, _ in rows]), y=torch.stack([y for _, y in rows]))

for epoch in range(5):
    for batch in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, collate_fn=collate):
        batch = batch.to("cpu")
        step(batch.x, batch["y"])
""",
    "named tuples": """
Batch = collections.namedtuple("Batch", "x y")

def collate(rows):
    return Batch(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))

for epoch in range(5):
    for batch in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, collate_fn=collate):
        step(batch.x, batch.y)
""",
    "a batch class of its own": """
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor

def collate(rows):
    return Batch(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))

for epoch in range(5):
    for batch in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, collate_fn=collate):
        batch.x.mul_(2)
        step(batch.x, batch.y)
""",
    "two loaders side by side": """
for epoch in range(5):
    one = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
    other = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), batch_size=16, shuffle=True)
    for (x, y), (u, v) in zip(one, other):
        step(torch.cat([x, u]), torch.cat([y, v]))
""",
    "an endless loader": """
for x, y in itertools.islice(itertools.cycle(DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)), 40):
    step(x, y)
""",
    "next() on an iterator that is made anew": """
loader = DataLoader(TensorDataset(X, Y), batch_size=40, shuffle=True)
batches = iter(loader)
for i in range(40):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    step(x, y)
""",
    "an IterableDataset": """
class Stream(IterableDataset):
    def __iter__(self):
        while True:
            i = random.randrange(len(X))
            yield X[i], Y[i]

for x, y in itertools.islice(DataLoader(Stream(), batch_size=16), 40):
    step(x, y)
""",
    "worker processes": """
class Noisy(Dataset):
    def __len__(self):
        return len(X)
    def __getitem__(self, i):
        return X[i] + torch.randn(4), Y[i]

for epoch in range(5):
    for x, y in DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=2):
        step(x, y)
""",
    "noise that the loop adds": """
for epoch in range(5):
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True):
        step(x + torch.randn_like(x) * random.random(), y)
""",
    "torch.randint": """
for i in range(40):
    rows = torch.randint(len(X), (16,))
    step(X[rows], Y[rows])
""",
    "windows of one long series": """
series = torch.randn(1000)
for i in range(40):
    starts = torch.randint(len(series) - 5, (16,))
    x = torch.stack([series[s : s + 4] for s in starts])
    y = torch.stack([series[s + 4 : s + 5] for s in starts])
    step(x, y)
""",
    "numpy.random.choice": """
for i in range(40):
    rows = np.random.choice(len(X), 16)
    step(torch.from_numpy(X.numpy()[rows]), torch.from_numpy(Y.numpy()[rows]))
""",
    "a numpy generator of its own": """
rng, data = np.random.default_rng(3), X.numpy()
for i in range(40):
    rows = rng.integers(0, len(X), 16)
    step(torch.tensor(data[rows]), torch.as_tensor(Y.numpy()[rows]))
""",
    "random.sample": """
for i in range(40):
    rows = random.sample(range(len(X)), 16)
    step(X[rows], Y[rows])
""",
    "slices of a permutation": """
for epoch in range(5):
    order = torch.randperm(len(X))
    for start in range(0, len(X), 16):
        rows = order[start : start + 16]
        step(X[rows], Y[rows])
""",
    "pieces of split()": """
for epoch in range(5):
    order = torch.randperm(len(X))
    for x, y in zip(X[order].split(16), Y[order].split(16)):
        step(x, y)
""",
    "a loss of its own": """
def own(prediction, wanted):
    return (prediction - wanted).abs().mean()

for epoch in range(5):
    order = np.random.permutation(len(X))
    for start in range(0, len(X), 16):
        rows = order[start : start + 16]
        step(X[rows], Y[rows], own)
""",
    "a loss of its own on pieces of split()": """
class Own(nn.Module):
    def forward(self, prediction, wanted):
        return (prediction - wanted).abs().mean()

for epoch in range(5):
    order = torch.randperm(len(X))
    for x, y in zip(X[order].split(16), Y[order].split(16)):
        step(x, y, Own())
""",
    "rows of unequal length, filled up": """
texts = [torch.arange(1, 2 + i % 4).tolist() for i in range(100)]
for i in range(40):
    rows = random.sample(range(100), 16)
    x = torch.zeros(16, 4)
    for j, row in enumerate(rows):
        x[j, : len(texts[row])] = torch.tensor(texts[row], dtype=torch.float)
    step(x, Y[rows])
""",
    "micro-batches": """
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
for epoch in range(8):
    for i, (x, y) in enumerate(loader):
        (F.mse_loss(model(x), y) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
    "an evaluation in between": """
for epoch in range(12):
    model.train()
    for x, y in DataLoader(TensorDataset(X, Y), batch_size=64, shuffle=True):
        step(x, y)
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(X[:30], Y[:30]), batch_size=10):
            F.mse_loss(model(x), y)
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("frozen")


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[Runner]:
    """One for all scripts: it has imported torch."""
    home = folder / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with Runner(Program("train.py"), folder / "trials") as made:
            yield made


def run(runner: Runner, folder: Path, loop: str, module: str = "", steps: int = STEPS) -> tuple[Outcome, Outcome]:
    home = folder / "home"
    (home / "train.py").write_text(HEAD + loop)
    (home / "batches.py").write_text(module)
    frozen, free = Context(runner, 60.0).run([Variant("frozen", (FreezeBatch(),)), Variant("free")], steps)
    return frozen, free


def is_same(outcome: Outcome) -> bool:
    """From the second step on: the first may hold what happens only once."""
    losses = outcome.curve.finite[1:]
    assert len(losses) >= STEPS - 2, outcome.output
    return max(losses) - min(losses) <= 1e-6 * max(losses)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if index % 3 else []) for index, name in enumerate(LOOPS)]
)
def test_the_data_stay_the_same(runner: Runner, folder: Path, name: str) -> None:
    frozen, free = run(runner, folder, LOOPS[name])
    assert not is_same(free), "this loop shows nothing"
    assert is_same(frozen), (frozen.curve.losses, frozen.notes)
    assert frozen.notes["frozen"]["calls"] >= STEPS - 3


def test_batches_drawn_in_another_module(runner: Runner, folder: Path) -> None:
    module = """
import numpy as np
import torch

rng = np.random.default_rng(5)

def batch(x, y, size):
    rows = rng.permutation(len(x))[:size]
    return torch.from_numpy(x.numpy()[rows]), torch.from_numpy(y.numpy()[rows])
"""
    loop = """
from batches import batch
for i in range(40):
    step(*batch(X, Y, 16))
"""
    frozen, free = run(runner, folder, loop, module)
    assert not is_same(free)
    assert is_same(frozen)


def test_a_loader_goes_on_while_steps_are_taken_and_ends_otherwise(runner: Runner, folder: Path) -> None:
    loop = """
loader = DataLoader(TensorDataset(X, Y), batch_size=50)
print("batches", len(list(loader)))
for x, y in loader:
    step(x, y)
print("the end")
"""
    frozen, free = run(runner, folder, loop)
    assert "batches 2" in frozen.output
    assert "the end" in free.output
    assert len(frozen.curve.losses) >= STEPS - 1
    assert frozen.status == "stopped"
    assert len(free.curve.losses) <= 2


def test_targets_stay_the_same_after_the_steps_that_are_watched_closely(runner: Runner, folder: Path) -> None:
    loop = """
for i in range(200):
    rows = torch.randint(len(X), (16,))
    with torch.no_grad():
        wanted = Y[torch.from_numpy(np.random.default_rng(i).integers(0, 100, 16))]
    step(X[rows], wanted)
"""
    frozen, free = run(runner, folder, loop, steps=120)
    assert not is_same(free)
    assert is_same(frozen), frozen.curve.losses


def test_attention_without_dropout(runner: Runner, folder: Path) -> None:
    """torch itself calls the attention function with everything by position."""
    loop = """
model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for i in range(40):
    step(X[:24].view(8, 3, 4), Y[:24].view(8, 3, 1))
"""
    (folder / "home" / "train.py").write_text(HEAD + loop)
    calm, free = Context(runner, 60.0).run([Variant("calm", (NoDropout(),)), Variant("free")], STEPS)
    assert not is_same(free)
    assert is_same(calm), calm.output
