"""Ctrl-C and SIGTERM in every stage of `unstuck diagnose` and its kin: a report, an exit code, and nothing left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

ENDLESS = """\
import signal
import time
import torch
from torch import nn

{before}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(256, 8)
targets = inputs.sum(1, keepdim=True)
for step in iter(int, 1):
    loss = nn.functional.mse_loss(model(inputs), targets)
    {first}
    {then}
    optimizer.step()
    {inside}
"""
WIPED = {"first": "loss.backward()", "then": "optimizer.zero_grad()"}
RIGHT = {"first": "optimizer.zero_grad()", "then": "loss.backward()"}
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SOON = 10.0
"""Seconds: two are promised, and machines of tests are slow."""


class Command:
    """`unstuck ...` in a session of its own, as a terminal starts it."""

    def __init__(self, *words: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unstuck", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.started: set[int] = set()

    def wait_for(self, happened: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not happened():
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)
        self.started |= set(_descendants(self.process.pid))

    def has_no_children(self) -> bool:
        return not list(_descendants(self.process.pid))

    def press(self, number: int = signal.SIGINT) -> None:
        """To the whole group for Ctrl-C, as a terminal does."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Its exit code and what it printed; it ends soon and leaves nothing."""
        began = time.monotonic()
        told, complained = self.process.communicate(timeout=60)
        assert time.monotonic() - began < SOON
        assert "Traceback" not in told + complained
        deadline = time.monotonic() + SOON
        while any(_runs(pid) for pid in self.started) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in self.started if _runs(pid)]
        while list(Path(".unstuck").rglob("layer")) and time.monotonic() < deadline:
            time.sleep(0.05)  # after two Ctrl-C it is removed by somebody who notices
        assert not list(Path(".unstuck").rglob("layer"))
        return self.process.returncode, " ".join(told.split()), complained


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _runs(pid: int) -> bool:
    return bool(stat := _stat(pid)) and stat[0] != "Z"


def _descendants(pid: int) -> Iterator[int]:
    for other in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
        if (stat := _stat(other)) and int(stat[1]) == pid:
            yield other
            yield from _descendants(other)


def script(kind: dict[str, str], before: str = "pass", inside: str = "pass") -> None:
    Path("train.py").write_text(ENDLESS.format(**kind, before=before, inside=inside))


def trial(name: str) -> Callable[[], object]:
    return lambda: list(Path(".unstuck").glob(f"runs/*/*-{name}/events.jsonl"))


def steps_on_record(steps: int) -> Callable[[], bool]:
    def are_there() -> bool:
        files = Path(".unstuck").glob("runs/*/*-watched/events.jsonl")
        return any(file.read_text().count('"optimizer-step"') >= steps for file in files)

    return are_there


NOTHING = "unstuck: interrupted before the first training step; there is nothing to report.\n"
KNOWN = "unstuck: interrupted; the report shows the results so far\n"


@pytest.mark.parametrize(
    ("verb", "number", "code"),
    [
        ("diagnose", signal.SIGINT, 130),
        pytest.param("diagnose", signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param("overfit", signal.SIGINT, 130, marks=pytest.mark.slow),
    ],
)
def test_while_torch_is_imported_nothing_is_known(verb: str, number: int, code: int) -> None:
    script(RIGHT)
    command = Command(verb, "--quiet", "train.py")
    command.wait_for(lambda: list(Path(".unstuck").glob("runs/*/01-*")))
    command.press(number)
    assert command.end() == (code, "", NOTHING)


def test_the_steps_seen_so_far_are_judged_although_the_script_does_not_listen() -> None:
    script(WIPED, before=STUBBORN, inside="time.sleep(0.02)")
    command = Command("diagnose", "--quiet", "train.py")
    command.wait_for(steps_on_record(10))
    command.press()
    code, told, complained = command.end()
    assert (code, complained) == (130, KNOWN)
    assert "until it was interrupted" in told
    assert "O04" in told
    assert "s: it was interrupted." in told


@pytest.mark.slow
def test_a_script_that_has_not_trained_yet_is_one_sentence() -> None:
    script(RIGHT, before="time.sleep(600)")
    command = Command("diagnose", "--quiet", "train.py")
    command.wait_for(trial("watched"))
    command.press()
    assert command.end() == (130, "", NOTHING)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [(WIPED, "with-O04-seed0"), (RIGHT, "real-seed0")])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_was_found_before_is_reported_when_proofs_and_experiments_are_interrupted(
    kind: dict[str, str], name: str, number: int, code: int
) -> None:
    script(kind, inside="time.sleep(0.005)")
    command = Command("diagnose", "--quiet", "train.py")
    command.wait_for(trial(name))
    command.press(number)
    got, told, complained = command.end()
    assert (got, complained) == (code, KNOWN)
    assert "train.py was watched for" in told
    assert ("O04" in told) == (kind is WIPED)
    assert "s: it was interrupted." in told


@pytest.mark.slow
def test_twice_ends_at_once() -> None:
    script(RIGHT, before=STUBBORN, inside="time.sleep(0.02)")
    command = Command("diagnose", "--quiet", "train.py")
    command.wait_for(steps_on_record(5))
    deadline = time.monotonic() + SOON
    while command.process.poll() is None and time.monotonic() < deadline:  # two at the same moment count as one
        command.press()
        time.sleep(0.1)
    code, told, _ = command.end()
    assert (code, told) == (130, "")


@pytest.mark.slow
def test_an_experiment_says_how_far_its_run_had_come() -> None:
    script(RIGHT, inside="time.sleep(0.05)")
    command = Command("overfit", "--quiet", "train.py")
    command.wait_for(trial("overfit"))
    time.sleep(1)
    command.press()
    code, told, complained = command.end()
    assert (code, told) == (130, "")
    assert complained.startswith("unstuck: interrupted after ")
    assert complained.endswith(" steps, before overfit had an answer.\n")


@pytest.mark.slow
def test_a_report_is_finished_by_the_first_and_left_by_the_second() -> None:
    script({**WIPED, "first": "loss.backward()"}, inside="if step == 50: break")
    Path("train.py").write_text(Path("train.py").read_text().replace("iter(int, 1)", "range(60)"))
    for presses in (1, 2):
        page = Path(f"page{presses}.html")
        os.mkfifo(page)  # whoever writes to it waits for a reader
        command = Command("prove", "--quiet", "--html", str(page), "train.py")
        command.wait_for(trial("with-O04-seed0"))
        command.wait_for(command.has_no_children)
        for _ in range(presses):
            time.sleep(1)
            command.press()
        if presses == 1:
            assert page.read_text().rstrip().endswith("</html>")
        code, told, _ = command.end()
        assert code == 130
        assert ("O04" in told) == (presses == 1)
