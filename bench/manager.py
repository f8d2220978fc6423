"""What GradientManager costs: CPU time per step against the correct loop written by hand, interleaved, one thread.

    python bench/manager.py [--effort 1] [--only MLP]

"identical" compares the loop by hand with itself and tells how much of a ratio is noise. "reads" are the values per
step that the host asks for, by hand and with the manager; those of AdamW on a CPU (one per parameter) are among both.
"checked" loops refuse non-finite gradients, as the manager does unless told otherwise; "bare" ones let them through.
The last line shows what that check, one pass over the gradients that also tells their norm, costs a loop without it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from unstuck import GradientManager

Loop = Callable[[int], None]
MAX_NORM = 1.0


class Gpt(nn.Module):
    """A small language model with 10 million parameters."""

    def __init__(self, vocabulary: int = 8192, width: int = 320, depth: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        scores: Tensor = self.head(self.blocks(self.tokens(ids), mask=mask, is_causal=True))
        return scores.flatten(0, 1)


@dataclass
class Workload:
    """A model and its batch."""

    name: str
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    budget: float
    steps: int
    rounds: int

    def loss(self) -> Tensor:
        return functional.cross_entropy(self.model(self.inputs), self.labels)


def gpt() -> Workload:
    ids = torch.randint(0, 8192, (4, 128))
    return Workload("GPT 10M, 4 x 128 tokens", Gpt(), ids, torch.randint(0, 8192, (512,)), 1.01, 1, 16)


def perceptron() -> Workload:
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return Workload("MLP 784-256-10, batch 64", model, torch.randn(64, 784), torch.randint(0, 10, (64,)), 1.05, 4, 150)


@dataclass
class Kind:
    """What a loop does."""

    name: str
    clip: bool
    checked: bool
    accumulate: int = 1
    like_for_like: bool = True
    """Whether the loop by hand makes the same promise; only then is there a budget."""


KINDS = (
    Kind("clip, checked", True, True),
    Kind("clip", True, False),
    Kind("clip, 4 micro-steps", True, False, 4),
    Kind("no clip, checked", False, True),
    Kind("bare", False, False),
    Kind("default against bare", False, True, like_for_like=False),
)


def by_hand(work: Workload, kind: Kind) -> Loop:
    """The correct loop: divided, clipped on whole windows, cleared after the step."""
    accumulate = kind.accumulate
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    def loop(steps: int) -> None:
        for _ in range(steps):
            for _ in range(accumulate):
                loss = work.loss()
                (loss / accumulate if accumulate > 1 else loss).backward()
            if kind.clip:
                nn.utils.clip_grad_norm_(work.model.parameters(), MAX_NORM, error_if_nonfinite=kind.checked)
            elif kind.checked and kind.like_for_like:
                nn.utils.get_total_norm(
                    [p.grad for p in work.model.parameters() if p.grad is not None], error_if_nonfinite=True
                )
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    return loop


def managed(work: Workload, kind: Kind) -> Loop:
    """The same loop with a manager."""
    optimizer = torch.optim.AdamW(work.model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    manager = GradientManager(
        work.model,
        optimizer,
        accumulate=kind.accumulate,
        clip=MAX_NORM if kind.clip else None,
        scheduler=scheduler,
        on_nonfinite="raise" if kind.checked else "ignore",
    )

    def loop(steps: int) -> None:
        for _ in manager.batches(range(steps * kind.accumulate)):
            manager.backward(work.loss())
            manager.step()

    return loop


def cpu_seconds(loop: Loop, steps: int) -> float:
    start = time.process_time()
    loop(steps)
    return time.process_time() - start


def ratios(loops: Sequence[Loop], steps: int, rounds: int) -> tuple[float, float, float]:
    """Seconds per step of the first loop, and how the other two compare with it.

    Each has its own optimizer, so that none finds its state in the cache more often, and who comes first takes turns.
    Lower quartiles are compared: other programs make a round slower, never faster.
    """
    times: list[list[float]] = [[], [], []]
    for index in range(rounds):
        for turn in range(3):
            which = (index + turn) % 3
            times[which].append(cpu_seconds(loops[which], steps))
    first, second, third = (statistics.quantiles(one, n=4)[0] for one in times)
    return first / steps, second / first, third / first


class Reads(TorchDispatchMode):
    """Counts the values that a host would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        return func(*args, **(kwargs or {}))


def reads(loop: Loop) -> int:
    loop(1)
    with Reads() as counted:
        loop(1)
    return counted.count


def main() -> int:
    """Print one line per workload and kind of loop; exit with 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=1.0, help="a multiple of the usual number of rounds")
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'workload':<26}{'loop':<22}{'by hand ms':>11}{'manager':>9}{'identical':>11}{'budget':>8}{'reads':>10}")
    exceeded = False
    for build in (perceptron, gpt):
        for kind in KINDS:
            work = build()
            if not work.name.startswith(options.only):
                continue
            hand, own, again = by_hand(work, kind), managed(work, kind), by_hand(work, kind)
            waits = f"{reads(hand)} / {reads(own)}"
            rounds = max(6, int(options.effort * work.rounds / kind.accumulate))
            seconds, ratio, identical = ratios((hand, own, again), work.steps, rounds)
            exceeded |= kind.like_for_like and ratio > work.budget
            budget = f"{work.budget:.2f}" if kind.like_for_like else "none"
            numbers = f"{1000 * seconds:>11.2f}{ratio:>9.3f}{identical:>11.3f}{budget:>8}{waits:>10}"
            print(f"{work.name:<26}{kind.name:<22}{numbers}", flush=True)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
