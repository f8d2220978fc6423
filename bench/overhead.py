"""What watching costs: CPU time of a training loop with and without it, and with what people use instead.

    python bench/overhead.py [--rounds 15] [--only mlp,gpt,tensors] [--peers]
    python bench/overhead.py --syncs
    python bench/overhead.py --memory [--only mlp,gpt]

One thread, interleaved, medians of ratios to the bare loop run just before and just after. "identical" is the bare
loop against itself: it tells how much of a ratio is noise. "default" and "every 1" are measured where a run spends its
time, after the dense start of 50 steps, which stands in a column of its own, and once the pauses between recorded steps
are known. Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator

PINNED = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "100000000",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in PINNED.items()):
    # With malloc's own thresholds two identical runs differ by up to 1.6 times.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **PINNED})

import torch  # noqa: E402
from peers import PEERS  # noqa: E402
from workloads import ALL, Workload, many_tensors  # noqa: E402

import unstuck  # noqa: E402
from unstuck.capture.measure.tensors import Scalars  # noqa: E402
from unstuck.capture.window import BUDGET, DENSE, Window  # noqa: E402

STEPS = {"mlp": 300, "gpt": 10, "resnet": 10, "lstm": 20}
Runner = Callable[[Workload, int], float]


def bare(work: Workload, steps: int) -> float:
    """CPU seconds per step of the loop alone."""
    start = time.process_time()
    work.run(steps)
    return (time.process_time() - start) / steps


@contextlib.contextmanager
def watched(every: int | None, past_dense_start: bool) -> Iterator[Window]:
    """Under watch, as a user would be; the window, which is handed out, can be set to where the dense start is over."""
    with tempfile.TemporaryDirectory() as folder, unstuck.watch(record=folder + "/run", every=every, print=False) as w:
        window = w._engine._session.window
        if past_dense_start:
            window.number = DENSE
        yield window


def default(work: Workload, steps: int) -> float:
    """As `unstuck run` watches, after the dense start."""
    with watched(None, past_dense_start=True):
        work.run(max(3, steps // 10))
        return bare(work, steps)


def dense(work: Workload, steps: int) -> float:
    """The first fifty steps of `unstuck run`."""
    with watched(None, past_dense_start=False):
        return bare(work, min(steps, DENSE))


def everything(work: Workload, steps: int) -> float:
    """As `unstuck run --every 1` watches, after the dense start."""
    with watched(1, past_dense_start=True):
        work.run(max(3, steps // 10))
        return bare(work, steps)


def compare(name: str, work: Workload, steps: int, runners: dict[str, Runner], rounds: int) -> None:
    """Print one line: the ratio of every runner to the bare loop."""
    work.run(3)
    ratios: dict[str, list[float]] = {key: [] for key in runners}
    base: list[float] = []
    for _ in range(rounds):
        for key, runner in runners.items():
            before, taken, after = bare(work, steps), runner(work, steps), bare(work, steps)
            base += [before, after]
            ratios[key].append(2 * taken / (before + after))
    cells = "".join(f"{statistics.median(values):>12.3f}" for values in ratios.values())
    print(f"{name:<10}{1000 * statistics.median(base):>9.2f}{cells}", flush=True)


READS = ("item", "tolist", "__bool__", "__float__", "__int__")


@contextlib.contextmanager
def as_on_a_device() -> Iterator[Counter[str]]:
    """Counts what would wait for a device: the CPU is treated as one, and every read of a tensor is counted."""
    counts: Counter[str] = Counter()
    originals = {name: getattr(torch.Tensor, name) for name in READS}

    def counting(name: str) -> Callable[..., object]:
        def read(tensor: torch.Tensor) -> object:
            counts[name] += tensor.numel() > 0
            return originals[name](tensor)

        return read

    immediate, Scalars.immediate = Scalars.immediate, ()
    for name in READS:
        setattr(torch.Tensor, name, counting(name))
    try:
        yield counts
    finally:
        Scalars.immediate = immediate
        for name, original in originals.items():
            setattr(torch.Tensor, name, original)


def synchronisations(work: Workload, steps: int, every: int | None) -> float:
    """How often a step of the watched loop would wait for a device."""
    with as_on_a_device() as counts, watched(every, past_dense_start=True):
        work.run(60)
        counts.clear()
        work.run(steps)
        return counts.total() / steps


def ten_thousand(rounds: int) -> None:
    """Seconds of a step of a model of 10,000 tensors: bare, its optimizer's part of it, and watched, by the kind of
    window. Too few steps fit into a bench to have recorded ones as rarely as a run does, so they are listed separately:
    a run gives them `BUDGET` of its time."""
    work = many_tensors()
    work.run(3)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        start = time.process_time()
        work.optimizer.step()
        found.setdefault("optimizer", []).append(time.process_time() - start)
        found.setdefault("bare", []).extend(bare(work, 1) for _ in range(4))
        with watched(None, past_dense_start=True) as window:
            for _ in range(12):
                kind = "recorded" if window.sampled else "between"
                found.setdefault(kind, []).append(bare(work, 1))
        found["bare"] += [bare(work, 1) for _ in range(4)]
    told = ", ".join(f"{kind} {statistics.median(taken):.2f} s" for kind, taken in found.items())
    print(f"10,000 tensors: {told}; recorded ones take at most {BUDGET:.2%} of the time")


def resident() -> float:
    """Megabytes of this process's own, without the pages of libraries that it shares."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon"))


def memory(name: str, every: int | None) -> None:
    """Print what watching adds to the memory of a loop that has settled, past its first judgement."""
    work = ALL[name]()
    work.run(20)
    alone = resident()
    with watched(every, past_dense_start=False):
        work.run(DENSE)
        dense_start = resident()
        work.run(STEPS[name])
        later = resident() - alone
        print(f"{name}, every {every}: {dense_start - alone:+.1f} MB after {DENSE} steps, {later:+.1f} MB later")


def main() -> None:
    """Print one line per workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default=",".join(ALL), help="workloads, such as mlp,gpt")
    parser.add_argument("--peers", action="store_true", help="also what people use instead")
    parser.add_argument("--syncs", action="store_true", help="count host synchronisations per step, and nothing else")
    parser.add_argument("--memory", action="store_true", help="what watching adds to the memory, and nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.syncs:
        for every in (None, 1):
            print(f"synchronisations per step, mlp, every {every}: {synchronisations(ALL['mlp'](), 300, every):.3f}")
        return
    if options.memory:
        for name in options.only.split(","):
            for every in (None, 1):
                memory(name, every)
        return
    runners: dict[str, Runner] = {"identical": bare, "default": default, "every 1": everything, "dense": dense}
    if options.peers:
        runners |= {name: peer(bare) for name, peer in PEERS.items()}
    print(f"{'':<10}{'ms/step':>9}" + "".join(f"{name:>12}" for name in runners), flush=True)
    for name in options.only.split(","):
        if name == "tensors":
            ten_thousand(options.rounds)
        else:
            compare(name, ALL[name](), STEPS[name], runners, options.rounds)


if __name__ == "__main__":
    main()
