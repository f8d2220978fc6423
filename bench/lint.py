"""How fast lint is: beside its peers, beside the bare parse, from the cache, and on files of growing length.

    python bench/lint.py [--no-peers] [FOLDER]

Without a folder it reads the sources of the installed torch. Everything is CPU time of one process. Peers (ruff,
flake8, pylint, TorchFix) are measured if they are on the PATH or beside this Python, on a sample, since some need
minutes for what takes us seconds.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import chdir
from pathlib import Path

from unstuck.lint.cache import open_cache
from unstuck.lint.outcome import Outcome, outcome_of
from unstuck.lint.settings import Settings
from unstuck.source import SourceError, find_files
from unstuck.source.documents.files import read_text
from unstuck.source.reader.project import Modules, rare_collection

LEAST_SPEED, MOST_OVER_PARSE = 60.0, 2.8
"""Thousand lines a second, or else times the bare parse: one of the two is kept."""
LEAST_GAIN = 5.0
MOST_GROWTH = 2.2
MOST_LINES, PEER_LINES = 250_000, 8_000
PEERS = {
    "ruff": ["ruff", "check", "--select", "ALL", "--isolated", "--no-cache", "--quiet", "--exit-zero"],
    "flake8": ["flake8", "--isolated", "--jobs", "1", "--quiet", "--exit-zero"],
    "pylint": ["pylint", "--rcfile", os.devnull, "--jobs", "1", "--exit-zero"],
    "TorchFix": ["torchfix", "--select", "ALL"],
}
TRAINING = """\
import torch
from torch import nn


class Net{n}(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.body(x))


def train{n}(loader, epochs=3):
    model = Net{n}()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(epoch, loss.item())
    return model


train{n}([(torch.randn(4, 8), torch.randint(3, (4,)))])
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="How fast lint is.")
    parser.add_argument("folder", nargs="?", help="what to read (default: the installed torch)")
    parser.add_argument("--no-peers", action="store_true", help="measure nobody but ourselves")
    options = parser.parse_args()
    found = find_files([options.folder or torch_folder()])
    files = sample([path for path in found if path.suffix == ".py"], MOST_LINES)
    kept = [own_speed(files), cache_gain(files), growth()]
    if not options.no_peers:
        peers(sample(files, PEER_LINES))
    return int(not all(kept))


def torch_folder() -> str:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit("torch is not installed; name a folder: python bench/lint.py FOLDER")
    return str(Path(spec.origin).parent)


def sample(files: Sequence[Path], most_lines: int) -> list[Path]:
    """Files that parse, in a random but repeatable choice."""
    chosen, lines = [], 0
    for path in random.Random(0).sample(files, len(files)):
        try:
            bare_parse(path)
        except (SourceError, SyntaxError, RecursionError):
            continue
        chosen.append(path)
        lines += lines_in([path])
        if lines >= most_lines:
            break
    return sorted(chosen)


def bare_parse(path: Path) -> None:
    text = read_text(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(text)


def lines_in(files: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files)


def cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def own_speed(files: Sequence[Path]) -> bool:
    """Parse and lint take turns, so that a busy machine slows both alike."""
    rules, modules = Settings().rules, Modules()
    parsing = linting = 0.0
    for path in files:
        parsing += cpu(lambda path=path: bare_parse(path))
        linting += cpu(lambda path=path: outcome_of(path, rules, modules))
    thousands = lines_in(files) / 1000
    print(
        f"{len(files):,} files, {thousands:,.0f} thousand lines, {len(rules)} rules; thousand lines per CPU second:\n"
    )
    print_speed("bare ast.parse", thousands / parsing)
    print_speed("unstuck, all rules", thousands / linting, f"{linting / parsing:.2f}x the parse")
    return thousands / linting >= LEAST_SPEED or linting / parsing <= MOST_OVER_PARSE


def print_speed(name: str, speed: float, note: str = "") -> None:
    print(f"  {name:<24}{speed:>10,.1f}   {note}", flush=True)


def cache_gain(files: Sequence[Path]) -> bool:
    """The same files again, unchanged."""
    rules, modules = Settings().rules, Modules()
    files = [path.absolute() for path in files]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        cache = open_cache([rule.code for rule in rules])
        assert cache is not None
        cold = cpu(lambda: [cache.put(path, outcome_of(path, rules, modules)) for path in files])
        again = open_cache([rule.code for rule in rules])
        assert again is not None
        found: list[Outcome | None] = []
        warm = cpu(lambda: found.extend(again.get(path) for path in files))
    assert None not in found, "an answer was not kept"
    print_speed(
        "unstuck, from the cache", lines_in(files) / 1000 / warm, f"{cold / warm:.1f}x as fast as the first run"
    )
    return cold / warm >= LEAST_GAIN


def growth() -> bool:
    """A file of twice the length, again and again."""
    rules = Settings().rules
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for amount in (25, 50, 100, 200):
            path = Path(folder) / "train.py"
            path.write_text("".join(TRAINING.replace("{n}", str(number)) for number in range(amount)))
            seconds.append(min(cpu(lambda path=path: outcome_of(path, rules, Modules())) for _ in range(5)))
    factors = [later / earlier for earlier, later in itertools.pairwise(seconds)]
    shown = ", ".join(f"{factor:.2f}" for factor in factors)
    print(f"\ntwice the lines take {shown} times as long (at most {MOST_GROWTH})")
    return max(factors) <= MOST_GROWTH


def peers(files: Sequence[Path]) -> None:
    thousands = lines_in(files) / 1000
    print(f"\npeers, {len(files)} files, {thousands:.1f} thousand lines, their start not counted:\n")
    own = [sys.executable, "-m", "unstuck", "lint", "--no-cache", "--jobs", "1", "--fail-on", "never", "--statistics"]
    for name, command in {"unstuck": own, **PEERS}.items():
        found = command[0] if name == "unstuck" else on_path(command[0])
        if found is None:
            print(f"  {name:<24}not installed: skipped", flush=True)
            continue
        used = children_cpu([found, *command[1:], *map(str, files)]) - started_cpu([found, *command[1:]])
        print_speed(name, thousands / max(used, 1e-3))


def on_path(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def started_cpu(command: Sequence[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.py"
        path.touch()
        return children_cpu([*command, str(path)])


def children_cpu(command: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    with rare_collection():  # as the command does
        sys.exit(main())
