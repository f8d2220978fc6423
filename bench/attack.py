"""Attacks the isolation of trials: random scripts that spoil files, and processes killed at random times.

    python bench/attack.py                        # 300 scripts, 200 kills
    python bench/attack.py --scripts 50 --kills 0 --seed 7 --isolation landlock

Every script carries out a dozen operations of `tests/promises/file_operations.py`, drawn with its seed, on folders that
they share. After each trial the world must be as it was; after each kill no process and, with the next start, no file
may be left. Ends with 1 at the first difference and says the seed that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests" / "promises"
sys.path.insert(0, str(TESTS))

from file_operations import NEEDED, ODD, SPOIL  # noqa: E402
from worlds import COMMAND, OVERLAY, a_world, picture_of, run_python, survivors  # noqa: E402

FOLDERS = {str(number): "" for number in range(4)}
SLOW = ("torch.export.save", "a spawned worker", "a worker of a server", "signals to others")
"""Left out: they take seconds each, and the tests have them."""
OPERATIONS = [code for name, code in {**NEEDED, **ODD}.items() if name not in SLOW]

SCRIPT = """
import json, os, random, shutil, stat, subprocess, sys, tempfile
from pathlib import Path
import numpy, torch
from torch import nn
{spoil}
draw = random.Random(int(Path("seed.txt").read_text()))
home, outside = os.getcwd(), os.path.dirname(os.getcwd()) + "/outside"
for code in draw.choices(json.loads(Path("operations.json").read_text()), k=12):
    b = draw.choice(["ops", "ops", outside]) + "/" + str(draw.randrange(4))
    try:
        exec(code, {{**globals(), "b": b}})
    except BaseException:
        pass
    try:
        os.chdir(home)
    except OSError:
        break
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).mean().backward()
    optimizer.step()
"""
TRY = """
from pathlib import Path
from unstuck.trials.runner import Program, Runner, Variant
with Runner(Program("train.py"), Path(".unstuck/runs/20260101-000000-attack").absolute(), jobs=1) as runner:
    for line in sys.stdin:
        Path("seed.txt").write_text(line)
        outcome = runner.run([Variant(f"seed{int(line)}")], 60.0)[0]
        print(json.dumps([runner.isolation, outcome.status]), flush=True)
"""
HANGING = """
import os, subprocess, sys, time, torch
from torch import nn
subprocess.Popen(["sleep", "987.654"], start_new_session=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(10**9):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).pow(2).mean().backward()
    optimizer.step()
    open("best.pt", "w").write("x" * 10000)
    time.sleep(0.01)
"""


def attack_with_scripts(count: int, seed: int, isolation: str) -> None:
    """Random scripts, one trial each."""
    with a_world(FOLDERS, None) as world:
        project = world / "project"
        (project / "train.py").write_text(SCRIPT.format(spoil=SPOIL))
        (project / "operations.json").write_text(json.dumps(OPERATIONS))
        (project / "seed.txt").write_text("0")
        seen: dict[str, int] = {}
        process = run_python(world, TRY, isolation=isolation, user=None, stdin=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        before = picture_of(world)
        for number in range(seed, seed + count):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            answer = next(line for line in process.stdout if line.startswith("["))
            held, status = json.loads(answer)
            assert held == isolation, f"{held} holds here, not {isolation}"
            seen[status] = seen.get(status, 0) + 1
            after = picture_of(world)
            changed = sorted(
                path
                for path in {*before, *after}
                if before.get(path) != after.get(path)
                and not path.endswith(("seed.txt", "/project", "/project/.", "/tmp", "/tmp/."))
                and "/tmp/unstuck-trials-" not in path  # for as long as trials run
            )
            if changed or survivors():
                sys.exit(f"seed {number} with {isolation}: changed {changed[:5]}, running on {survivors()}")
        process.stdin.close()
        process.wait(30)
    print(f"{count} scripts with {isolation}: nothing changed, nothing runs on; {seen}")


def attack_with_signals(count: int, seed: int, isolation: str) -> None:
    """Kill one of the processes of a diagnosis, or a whole group of them, at a random time."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder)
        for name in ("project", "home", "tmp", "cache"):
            (world / name).mkdir()
        project = world / "project"
        (project / "train.py").write_text(HANGING)
        for number in range(count):
            _kill_once(draw, world, isolation, f"kill {number} of seed {seed} with {isolation}")
        _start(world, isolation).communicate(timeout=120)
        left = [*project.glob(".unstuck/runs/*/layer"), *(world / "tmp").iterdir(), *project.glob("best.pt")]
        if left:
            sys.exit(f"seed {seed} with {isolation}: left on disk {left}")
    print(f"{count} kills with {isolation}: nothing runs on, nothing is left on disk")


def _start(world: Path, isolation: str) -> subprocess.Popen[str]:
    return run_python(world, COMMAND, "overfit", "--budget", "10s", "train.py", isolation=isolation, user=None)


def _kill_once(draw: random.Random, world: Path, isolation: str, what: str) -> None:
    process = _start(world, isolation)
    time.sleep(draw.uniform(0.0, 9.0))
    family = list(_family(process.pid))
    victim = draw.choice([process.pid, *family])
    number = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
    try:
        if draw.random() < 0.3 and os.getpgid(victim) != os.getpgid(0):
            os.killpg(os.getpgid(victim), number)
        else:
            os.kill(victim, number)
    except ProcessLookupError:
        pass
    try:
        process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        sys.exit(f"{what}: did not end after signal {number}")
    deadline = time.monotonic() + 10
    while (left := [*survivors(), *(pid for pid in family if _runs(pid))]) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        sys.exit(f"{what}: {left} run on after signal {number} to {victim} of {family}")


def _family(pid: int) -> Iterator[int]:
    """All processes below one."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    todo = [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, above in parents.items() if above == parent]
        yield from children
        todo += children


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", type=int, default=300)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isolation", default=OVERLAY)
    options = parser.parse_args()
    if options.scripts:
        attack_with_scripts(options.scripts, options.seed, options.isolation)
    if options.kills:
        attack_with_signals(options.kills, options.seed, options.isolation)


if __name__ == "__main__":
    main()
