"""What starting a trial costs, beside an empty project, in one with 50,000 files and 2 GB.

    python bench/isolation.py [--files 50000] [--rounds 7] [--isolation overlay]

The script does nothing but take one optimizer step. Trials in both projects take turns; medians and their difference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "promises"))

from worlds import OVERLAY, a_world, run_python

SCRIPT = """
import torch
weight = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
weight.sum().backward()
optimizer.step()
"""
TRY = """
import time
from pathlib import Path
from unstuck.trials.runner import Program, Runner, Variant
with Runner(Program("train.py"), Path(".unstuck/runs/20260101-000000-bench").absolute(), jobs=1) as runner:
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        outcome = runner.run([Variant(f"round{number}")], 60.0)[0]
        print(json.dumps([runner.isolation, outcome.status, time.perf_counter() - began]), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--isolation", default=OVERLAY)
    options = parser.parse_args()
    with a_world({}, None) as small, a_world({}, None) as large:
        for world in (small, large):
            (world / "project" / "train.py").write_text(SCRIPT)
        for number in range(options.files):
            folder = large / "project" / "data" / str(number % 50)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.txt").write_text("x")
        for number in range(20):
            with open(large / "project" / f"{number}.bin", "wb") as file:
                file.truncate(100 * 2**20)
        runs = [
            run_python(world, TRY, isolation=options.isolation, user=None, stdin=subprocess.PIPE)
            for world in (small, large)
        ]
        times: list[list[float]] = [[], []]
        for number in range(options.rounds + 1):
            for process, taken in zip(runs, times, strict=True):
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                _, status, seconds = json.loads(next(line for line in process.stdout if line.startswith("[")))
                assert status == "finished", status
                taken += [seconds] if number else []  # the first one waits for torch to be imported
        for process in runs:
            process.communicate()
    empty, full = map(statistics.median, times)
    print(f"a trial, with {options.isolation}: {empty * 1e3:.0f} ms in an empty project, {full * 1e3:.0f} ms beside")
    print(f"{options.files:,} files and 2 GB: {(full - empty) * 1e3:+.0f} ms (median of {options.rounds})")


if __name__ == "__main__":
    main()
