"""How quickly the page of a long run is made and drawn, and what following one costs.

    python bench/view.py

The run has 100 layers and 10,000 steps, each of which was measured. Times are CPU time where they are ours, and the
browser's own clock for what it draws. Without Chromium only the first part is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.view.browser import Watched, browser, trouble
from tests.view.records import events_of_a_run
from unstuck.events import RunEnded, RunStarted
from unstuck.findings.investigation import Investigation
from unstuck.record import read
from unstuck.record.in_use import lock
from unstuck.record.lines import encode
from unstuck.record.store import DISK_BUDGET
from unstuck.result import result_of
from unstuck.rule import load_witnesses
from unstuck.view.html import page
from unstuck.view.live import Followed

LAYERS, STEPS = 100, 10_000
LIMITS = {
    "report of 4,000 steps x 60 layers, MB": 2.0,
    "report of 4,000 steps x 60 layers, s": 3.0,
    "64 MB record opened, s": 5.0,
    "64 MB record opened, MB of memory": 500.0,
    "page of 10,000 steps x 100 layers, first draw in s": 1.5,
    "the same, CPU time of its thread": 1.5,
    "page of 10,000 steps x 100 layers, MB of heap": 60.0,
    "following, share of a core in %": 5.0,
}


def main() -> int:
    load_witnesses()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        report = made(written(folder / "usual", 4000, 60, 10))
        found["report of 4,000 steps x 60 layers, MB"] = report[1] / 2**20
        found["report of 4,000 steps x 60 layers, s"] = report[0]
        full = written(folder / "full", STEPS, LAYERS, 1)
        size = (full / "events.jsonl").stat().st_size / 2**20
        print(f"a record of {size:.1f} MB, with {LAYERS} layers")
        found["64 MB record opened, s"], found["64 MB record opened, MB of memory"] = opened_alone(full)
        if trouble():
            print(f"not drawn: {trouble()}")
        else:
            measured = drawn(full, folder)
            found["page of 10,000 steps x 100 layers, first draw in s"] = measured[0]
            found["the same, CPU time of its thread"] = measured[1]
            found["page of 10,000 steps x 100 layers, MB of heap"] = measured[2]
        found["following, share of a core in %"] = following(folder / "followed")
    for name, value in found.items():
        print(f"{name:<55} {value:8.2f}   limit {LIMITS[name]:g}{'' if value <= LIMITS[name] else '   MISSED'}")
    return 0 if all(value <= LIMITS[name] for name, value in found.items()) else 1


def written(folder: Path, steps: int, layers: int, every: int) -> Path:
    """A record, as long as the writer would let it become."""
    folder.mkdir()
    left = DISK_BUDGET
    with (folder / "events.jsonl").open("wb") as file:
        file.write(encode(RunStarted(script="train.py")))
        for event in events_of_a_run(steps, layers, every=every):
            line = encode(event)
            left -= len(line)
            if left < 2**16:
                break
            file.write(line)
        file.write(encode(RunEnded(steps=steps)))
    return folder


def made(folder: Path) -> tuple[float, int]:
    """Seconds of CPU time for the page of a record, and its bytes."""
    began = time.process_time()
    record = read(folder)
    content = page(Investigation(result=result_of(record, folder, "report"), folder=folder), record)
    return time.process_time() - began, len(content.encode())


def opened_alone(folder: Path) -> tuple[float, float]:
    """CPU seconds and memory of a process that opens a record for the live view."""
    program = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from unstuck.rule import load_witnesses\n"
        "from unstuck.view.live import Followed\n"
        "load_witnesses()\n"
        "began = time.process_time()\n"
        "Followed(Path(sys.argv[1])).refresh()\n"
        "print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()
    return float(seconds), float(memory)


def drawn(folder: Path, place: Path) -> tuple[float, float, float]:
    """Seconds from the start of a page to the first picture with its charts, the CPU time of its thread until then,
    and its heap; medians of five."""
    record = read(folder)
    file = place / "page.html"
    file.write_text(page(Investigation(result=result_of(record, folder, "report"), folder=folder), record), "utf-8")
    measured: list[tuple[float, float, float]] = []
    with browser() as started:
        for _ in range(5):
            watched = Watched(started, 1280, 2000, "light")
            session = watched.context.new_cdp_session(watched.page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            watched.page.goto(file.as_uri())
            watched.page.wait_for_selector("[data-heat=update]")
            wall = watched.page.evaluate(FIRST_DRAW) / 1000
            metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            heap = watched.page.evaluate("performance.memory.usedJSHeapSize") / 2**20
            measured.append((wall, metrics["TaskDuration"], heap))
            watched.context.close()
    walls, cpus, heaps = zip(*measured, strict=True)
    return sorted(walls)[2], sorted(cpus)[2], sorted(heaps)[2]


FIRST_DRAW = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"


def following(folder: Path, seconds: float = 40.0) -> float:
    """The share of a core, in percent, that it takes to follow a run which writes 20 steps of 30 layers a second, once
    20 seconds of it have been shown."""
    folder.mkdir()
    stop = threading.Event()
    lines = [encode(event) for event in events_of_a_run(20_000, 30, every=10)]

    def write() -> None:
        with (folder / "events.jsonl").open("ab", buffering=0) as file:
            lock(file.fileno())
            file.write(encode(RunStarted(script="train.py")) + b"".join(lines[:2000]))
            for start in range(2000, len(lines), 8):
                if stop.wait(0.2):
                    return
                file.write(b"".join(lines[start : start + 8]))

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.5)
    followed = Followed(folder)
    followed.refresh()
    settle(followed, 20.0)
    began, cpu, version = time.monotonic(), time.thread_time(), followed.version
    settle(followed, seconds)
    share = 100 * (time.thread_time() - cpu) / (time.monotonic() - began)
    print(f"followed: {followed.version - version} new versions in {seconds:.0f} s")
    stop.set()
    writer.join()
    return share


def settle(followed: Followed, seconds: float, wait: Callable[[float], None] = time.sleep) -> None:
    """Look as often as the server does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        followed.refresh()
        wait(0.3)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
