"""How long `unstuck` takes to start, as a multiple of `python -c pass`.

    python bench/start.py [ROUNDS]

Commands alternate, so that a busy machine slows all of them alike, and medians are compared: by the clock, and by the
processor time of the process and its children, which a busy machine disturbs less. As in an installed package, the
bytecode exists before the first start that counts.

`import msgspec, argparse, pathlib, ast` is what `lint` cannot do without; it shows how much of its time is ours.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMITS = {"unstuck --version": 2.0, "unstuck explain O12": 2.5, "unstuck lint train.py": 4.0}
"""Aims, as a multiple of `python -c pass`."""
SCRIPT = """import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = nn.functional.cross_entropy(model(torch.randn(4, 8)), torch.randint(2, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COMMAND = "import sys; from unstuck.__main__ import main; sys.exit(main())"
"""The console script, without the shell or launcher that an installation may put around it."""


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    python = [sys.executable, "-c"]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        commands = {
            "python -c pass": [*python, "pass"],
            "import msgspec, ...": [*python, "import msgspec, argparse, pathlib, ast"],
            "unstuck --version": [*python, COMMAND, "--version"],
            "unstuck explain O12": [*python, COMMAND, "explain", "O12"],
            "unstuck lint train.py": [*python, COMMAND, "lint", str(script)],
        }
        by_clock, by_processor = measure(commands, rounds, bytecode=f"{folder}/bytecode")
    return print_table(by_clock, by_processor)


def measure(commands: dict[str, list[str]], rounds: int, bytecode: str) -> tuple[dict[str, float], dict[str, float]]:
    """Median milliseconds of each command, by the clock and of the processor, after one start that is not counted."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    clock: dict[str, list[float]] = {name: [] for name in commands}
    processor: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
            _, status, used = os.wait4(process.pid, 0)
            clock[name].append(1000 * (time.perf_counter() - started))
            processor[name].append(1000 * (used.ru_utime + used.ru_stime))
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, f"{name} exited with {process.returncode}"
    medians = ({name: statistics.median(values[1:]) for name, values in times.items()} for times in (clock, processor))
    return next(medians), next(medians)


def print_table(by_clock: dict[str, float], by_processor: dict[str, float]) -> int:
    """The table, and 1 if a command misses its aim by both measures."""
    base = next(iter(by_clock))
    missed = 0
    print(f"{'':<24}{'clock':>10}{'':>8}{'processor':>14}{'':>8}{'aim':>8}")
    for name in by_clock:
        ratios = by_clock[name] / by_clock[base], by_processor[name] / by_processor[base]
        aim = LIMITS.get(name)
        missed += aim is not None and min(ratios) > aim
        shown = f"{aim:.1f}x" if aim else ""
        clock = f"{by_clock[name]:>7.1f} ms{ratios[0]:>7.1f}x"
        print(f"{name:<24}{clock}{by_processor[name]:>11.1f} ms{ratios[1]:>7.1f}x{shown:>8}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
