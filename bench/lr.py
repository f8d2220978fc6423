"""How good the learning rate range test is: stable suggestions, rates that train, and what it costs.

    python bench/lr.py [--seeds 5] [--only mlp,cnn,gpt] [--optimizers sgd,momentum,adam,adamw] [--cost]

For each model and optimizer `unstuck.experiments.lr` runs on live objects, once for every seed of weights and data.
Told are the suggested rates, the decades between the lowest and the highest, and the loss after 200 steps at the
suggested rate and at a tenth and ten times of it: means over the seeds of the last 20 losses. "best" counts the seeds
where the suggested rate wins. `--cost` tells the CPU time of a swept loop as a ratio to the bare loop, interleaved;
"identical" is the bare loop against itself.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

PINNED = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "100000000",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in PINNED.items()):
    # With malloc's own thresholds two identical runs differ by up to 1.6 times.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PINNED})

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from workloads import ALL, Block, Workload  # noqa: E402

from unstuck.experiments.lr import lr  # noqa: E402
from unstuck.interventions import SweepRate, intervene  # noqa: E402
from unstuck.trials.objects import ObjectContext  # noqa: E402

STEPS, TAIL = 200, 20
Objects = tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], DataLoader[tuple[Tensor, ...]]]


def _loader(inputs: Tensor, labels: Tensor, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch, shuffle=True)


def mlp() -> Objects:
    """Ten noisy clusters in 20 dimensions."""
    labels = torch.randint(0, 10, (2000,))
    inputs = torch.randn(10, 20)[labels] + torch.randn(2000, 20)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, F.cross_entropy, _loader(inputs, labels, 64)


def cnn() -> Objects:
    """Stripes in eight directions."""
    labels = torch.randint(0, 8, (1000,))
    angle = labels * math.pi / 8
    axis = torch.linspace(-1, 1, 12)
    across = torch.cos(angle)[:, None, None] * axis + torch.sin(angle)[:, None, None] * axis[:, None]
    waves = torch.sin(8 * across + 6.28 * torch.rand(1000, 1, 1)) + 0.5 * torch.randn(1000, 12, 12)
    layers = (nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    more = (nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, *more, nn.Linear(128, 8)), F.cross_entropy, _loader(waves[:, None], labels, 32)


class Gpt(nn.Module):
    """Two blocks over the tokens of a made language."""

    def __init__(self, words: int, width: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4), nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, at each place."""
        return self.blocks(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))


def gpt() -> Objects:
    """Each token is followed by one of three."""
    words, length, count = 48, 24, 600
    followers = torch.randint(0, words, (words, 3))
    tokens = torch.empty(count, length + 1, dtype=torch.long)
    tokens[:, 0] = torch.randint(0, words, (count,))
    for place in range(length):
        tokens[:, place + 1] = followers[tokens[:, place], torch.randint(0, 3, (count,))]

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), target.flatten())

    return Gpt(words, 48, length), loss, _loader(tokens[:, :-1], tokens[:, 1:], 16)


MODELS = {"mlp": mlp, "cnn": cnn, "gpt": gpt}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
OWN = {"sgd": 0.01, "momentum": 0.01, "adam": 1e-3, "adamw": 1e-3}


class Trained(NamedTuple):
    """The suggested rate of one seed, and the losses at a tenth of it, at it, and at ten times it."""

    suggested: float
    losses: tuple[float, float, float]
    seconds: float


def suggestion(build: Callable[[], Objects], optimizer: str, seed: int) -> Trained:
    """What `lr` suggests, then the trainings that put it to the test."""
    torch.manual_seed(seed)
    model, loss_fn, loader = build()
    own = OPTIMIZERS[optimizer](model.parameters(), lr=OWN[optimizer])
    found = lr(ObjectContext(model, loss_fn, own, loader, seconds=600))
    rate = found.measures.get("suggested")
    if not isinstance(rate, float):
        sys.exit(f"no rate was suggested: {found.sentence}")
    below, at, above = (trained(build, optimizer, rate * factor, seed) for factor in (0.1, 1.0, 10.0))
    return Trained(rate, (below, at, above), found.seconds)


def trained(build: Callable[[], Objects], optimizer: str, rate: float, seed: int) -> float:
    """The loss after 200 steps at a rate: the mean of the last 20."""
    torch.manual_seed(seed)
    model, loss_fn, loader = build()
    stepper = OPTIMIZERS[optimizer](model.parameters(), lr=rate)
    losses: list[float] = []
    while len(losses) < STEPS:
        for inputs, target in loader:
            stepper.zero_grad()
            loss = loss_fn(model(inputs), target)
            loss.backward()
            stepper.step()
            losses.append(float(loss.detach()))
    tail = statistics.fmean(losses[STEPS - TAIL : STEPS])
    return tail if math.isfinite(tail) else math.inf


def compare(name: str, optimizer: str, seeds: int) -> bool:
    """Print one line; True if both claims hold."""
    found = [suggestion(MODELS[name], optimizer, seed) for seed in range(seeds)]
    rates = sorted(each.suggested for each in found)
    decades = math.log10(rates[-1] / rates[0])
    below, at, above = (statistics.fmean(each.losses[i] for each in found) for i in range(3))
    won = sum(each.losses[1] <= min(each.losses) for each in found)
    told = " ".join(f"{rate:.2g}" for rate in rates)
    good = decades <= 0.5 and at < min(below, above)
    print(
        f"{name:<5}{optimizer:<10}{decades:>8.2f}{below:>10.4g}{at:>10.4g}{above:>10.4g}{won:>5}/{seeds}"
        f"{statistics.fmean(each.seconds for each in found):>8.1f}  {'ok ' if good else 'NOT'}  {told}",
        flush=True,
    )
    return good


def bare(work: Workload, steps: int) -> float:
    """CPU seconds per step of the loop alone."""
    start = time.process_time()
    work.run(steps)
    return (time.process_time() - start) / steps


def swept(work: Workload, steps: int) -> float:
    """The same under a sweep, of rates so low that the numbers stay what they are."""
    lab = intervene([SweepRate(1e-6, 1e-5, steps)])
    try:
        return bare(work, steps)
    finally:
        lab.undo()


def cost(rounds: int) -> None:
    """Print the ratio of the swept loop to the bare one."""
    print(f"{'':<10}{'ms/step':>9}{'identical':>12}{'swept':>12}", flush=True)
    for name, steps in {"mlp": 200, "lstm": 10, "gpt": 4, "resnet": 4}.items():
        work = ALL[name]()
        work.run(3)
        base, same, under = [], [], []
        for _ in range(rounds):
            base.append(bare(work, steps))
            under.append(swept(work, steps) / base[-1])
            same.append(bare(work, steps) / base[-1])
        cells = "".join(f"{statistics.median(ratios):>12.3f}" for ratios in (same, under))
        print(f"{name:<10}{1000 * statistics.median(base):>9.2f}{cells}", flush=True)


def main() -> None:
    """Print one line for each model and optimizer, and exit with 1 if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default=",".join(MODELS), help="models, such as mlp,gpt")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS), help="such as sgd,adam")
    parser.add_argument("--cost", action="store_true", help="only what a sweep costs")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost:
        cost(options.rounds)
        return
    print(f"{'':<15}{'decades':>8}{'lr/10':>10}{'lr':>10}{'10 lr':>10}{'best':>7}{'s':>8}       suggested")
    names = [(model, optimizer) for model in options.only.split(",") for optimizer in options.optimizers.split(",")]
    good = [compare(model, optimizer, options.seeds) for model, optimizer in names]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
