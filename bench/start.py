"""How long `unstuck` takes to start, over `python -c pass`. The budget is 100 ms.

    python bench/start.py [ROUNDS]

Commands take turns, so that a busy machine slows all of them alike; medians are compared. As in an installed
package, the bytecode is there before the first start that counts.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BUDGET = 100.0
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


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        unstuck = str(Path(sys.executable).with_name("unstuck"))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "unstuck --version": [unstuck, "--version"],
            "unstuck explain O12": [unstuck, "explain", "O12"],
            "unstuck lint train.py": [unstuck, "lint", str(script)],
        }
        medians = measure(commands, rounds, bytecode=f"{folder}/bytecode")
    return print_table(medians)


def measure(commands: dict[str, list[str]], rounds: int, bytecode: str) -> dict[str, float]:
    """Median milliseconds of each command, after one start that is not counted."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def print_table(medians: dict[str, float]) -> int:
    base, *others = medians.items()
    print(f"{base[0]:<24}{base[1]:>8.1f} ms")
    for name, value in others:
        print(f"{name:<24}{value:>8.1f} ms   {value / base[1]:.1f}x   {value - base[1]:+.1f} ms of {BUDGET:.0f}")
    return int(any(value - base[1] > BUDGET for _, value in others))


if __name__ == "__main__":
    sys.exit(main())
