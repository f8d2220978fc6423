"""Runs trials of one program, a few at a time, each in a process of its own, and reads what they recorded."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from unstuck.events import Gauges
from unstuck.experiments.comparison import Files
from unstuck.experiments.curve import Curve, curve_of
from unstuck.experiments.layers import hold, remove_layer, sweep
from unstuck.interventions import LAYER, Intervention, Isolation, Trial
from unstuck.record import Record, RecordError, read

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than a trial
    "MPLBACKEND": "Agg",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Trials open no window, and draw the same numbers."""
STARTUP = 60.0
"""Seconds that torch may take to be imported."""
POLL = 0.2
NO_TRIAL = 70
"""Exit code of a trial that we failed to make."""
GRACE = 3.0
"""Seconds between asking a trial to end and ending it."""


class Program(msgspec.Struct, frozen=True):
    """What is tried: a script or module, with its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    as_module: bool = False


class Variant(msgspec.Struct, frozen=True):
    """One way to run the program."""

    name: str
    changes: tuple[Intervention, ...] = ()
    every: int | None = None
    show_data: bool = False
    repeat: int = 0
    """To make the same run once more."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial showed."""

    variant: Variant
    folder: Path
    status: str
    """`stopped` after its steps, `finished`, `exited`, `crashed`, `killed` at its deadline, or `failed` to start."""
    curve: Curve
    seconds: float
    exit_code: int | None = None
    reason: str = ""
    training_seconds: float | None = None
    """From the first measured step to the last."""
    notes: dict[str, Any] = {}

    @property
    def output(self) -> str:
        """What the program printed."""
        try:
            return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def record(self) -> Record:
        """Everything that was recorded. Raises `RecordError`."""
        return read(self.folder)


class _Running(msgspec.Struct):
    variant: Variant
    folder: Path
    began: float
    deadline: float
    pid: int = 0
    asked: bool = False
    killed: bool = False
    exit_code: int | None = None

    def enforce_deadline(self) -> None:
        """Ask it to end when its time is over, and make it end a little later."""
        late = time.monotonic() - self.deadline
        if self.pid and late > 0 and not self.asked:
            self.asked = True
            _signal(self.pid, signal.SIGTERM)
        elif self.pid and late > GRACE and not self.killed:
            self.killed = True
            _signal(self.pid, signal.SIGKILL)

    def has_begun(self, pid: int) -> None:
        """Its time begins when torch has been imported."""
        now = time.monotonic()
        self.pid, self.began, self.deadline = pid, now, now + self.deadline - STARTUP - self.began


Progress = Callable[[Variant, Path], None]
"""Called every moment with a trial that runs and the folder of its record."""


class Runner:
    """Tries one program. As a `with` block: at its end nothing of it runs, and what its trials wrote is gone."""

    def __init__(self, program: Program, folder: Path, jobs: int | None = None) -> None:
        self.program = program
        self.folder = folder.absolute()
        self._home = os.getcwd()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # Trials side by side might not fit into the memory of a graphics card.
        self.jobs = jobs or (1 if os.path.exists("/dev/nvidiactl") else max(1, min(4, cores)))
        self._threads = max(1, cores // self.jobs)
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.isolation: Isolation | None = None
        """What keeps trials from writing what is the user's. Known when the first of them has begun."""
        self.isolation_reason = ""
        """Why nothing stronger does."""
        self.files: Files | None = None
        """Those of the working directory before the first trial, where nothing but a comparison can tell."""

    def __enter__(self) -> Runner:
        from unstuck.capture import trackers

        environment = {"OMP_NUM_THREADS": str(self._threads), **trackers.environment(os.environ), **ENVIRONMENT}
        sweep()
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = hold(self.folder)
        (self.folder / LAYER).mkdir()
        assignment = {
            "home": self._home,
            "folder": str(self.folder),
            "target": self.program.target,
            "arguments": self.program.arguments,
        }
        command = [sys.executable, "-m", "unstuck.experiments.zygote", json.dumps(assignment)]
        pipe = subprocess.PIPE
        # Not in the working directory, whose modules must not be taken for those that torch imports. In a session of
        # its own, so that whoever kills our process group leaves somebody who cleans up.
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=self.folder,
            stdin=pipe,
            stdout=pipe,
            pass_fds=(lock,),
            start_new_session=True,
        )
        os.close(lock)
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            _pipe(process.stdin).close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _pipe(process.stdout).close()
        remove_layer(self.folder)

    def run(
        self, variants: Sequence[Variant], seconds: float, progress: Progress = lambda variant, folder: None
    ) -> list[Outcome]:
        """Run them all, each for so many seconds at the most."""
        waiting = list(enumerate(variants))
        running: dict[int, _Running] = {}
        done: dict[int, Outcome] = {}
        while waiting or running:
            while waiting and len(running) < self.jobs:
                number, variant = waiting.pop(0)
                running[number] = self._begin(number, variant, seconds)
            self._listen(running)
            for number, trial in list(running.items()):
                progress(trial.variant, trial.folder)
                if trial.exit_code is not None:
                    done[number] = _outcome(running.pop(number))
                elif not trial.pid and time.monotonic() > trial.deadline:
                    self._give_up()
                else:
                    trial.enforce_deadline()
        return [done[number] for number in sorted(done)]

    def _begin(self, number: int, variant: Variant, seconds: float) -> _Running:
        self._count += 1
        folder = self.folder / f"{self._count:02}-{variant.name}"
        folder.mkdir(parents=True)
        trial = Trial(
            target=self.program.target,
            arguments=self.program.arguments,
            as_module=self.program.as_module,
            home=self._home,
            folder=str(folder),
            changes=variant.changes,
            every=variant.every,
            show_data=variant.show_data,
        )
        self._ask({"id": number, "trial": trial})
        now = time.monotonic()
        return _Running(variant, folder, now, now + seconds + STARTUP)

    def await_isolation(self) -> Isolation | None:
        """What keeps trials apart here, whether one was asked for or not; None if nothing can be run."""
        assert self._process is not None
        while self.isolation is None and self._process.poll() is None:
            self._listen({})
        return self.isolation

    def _give_up(self) -> None:
        """End the process that forks: it does not answer."""
        assert self._process is not None
        self._process.kill()

    def prepare(self, modules: Sequence[str]) -> None:
        """Have these modules imported once, for all trials to come."""
        self._ask({"modules": modules})

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):  # the process is gone, which `run` notices
            # Not msgspec, which refuses a path that is not UTF-8.
            _pipe(self._process.stdin).write(json.dumps(msgspec.to_builtins(request)).encode() + b"\n")
            _pipe(self._process.stdin).flush()

    def _listen(self, running: dict[int, _Running]) -> None:
        assert self._process is not None
        stream = _pipe(self._process.stdout)
        ready, _, _ = select.select([stream], [], [], POLL)
        data = os.read(stream.fileno(), 1 << 16) if ready else b""
        if ready and not data:
            for trial in running.values():  # the process that forks is gone, and its trials go with it
                trial.exit_code = NO_TRIAL
                if trial.pid:
                    _signal(trial.pid, signal.SIGKILL)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            answer = msgspec.json.decode(line)
            if "isolation" in answer:
                self.isolation, self.isolation_reason = Isolation(answer["isolation"]), answer["reason"]
                if self.isolation is Isolation.COPIES:
                    self.files = Files(self._home)
            number = answer.get("id")
            if number not in running:
                continue
            if "pid" in answer:
                running[number].has_begun(answer["pid"])
            else:
                running[number].exit_code = answer["exit"]


def _outcome(trial: _Running) -> Outcome:
    seconds = time.monotonic() - trial.began
    try:
        notes = msgspec.json.decode((trial.folder / "notes.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        notes = {}
    try:
        record = read(trial.folder)
    except RecordError:
        record = None
    ended = record.ended if record else None
    return Outcome(
        variant=trial.variant,
        folder=trial.folder,
        status=ended.status if ended else _end_untold(trial, record),
        curve=_curve(record, notes.get("losses") or []),
        seconds=seconds,
        exit_code=trial.exit_code,
        reason=ended.reason if ended else "",
        training_seconds=_training_seconds(record) if record else None,
        notes=notes,
    )


def _end_untold(trial: _Running, record: Record | None) -> str:
    """How a trial ended that has not put its end on record: by `os._exit`, say, or by a fault in a library."""
    if trial.asked:
        return "killed"
    if record is None or trial.exit_code == NO_TRIAL:
        return "failed"
    return "crashed" if trial.exit_code else "exited"


def _curve(record: Record | None, losses: Sequence[float | None]) -> Curve:
    """The losses that steps have used; where no step has used any, those that backward was called on."""
    curve = curve_of(record) if record else Curve()
    if len(curve.finite) <= 1 < len(losses):
        return Curve(tuple(range(len(losses))), tuple(losses))
    return curve


def _training_seconds(record: Record) -> float | None:
    """What the steps took, from those that were measured."""
    measured = [gauges.seconds for gauges in record.of(Gauges) if gauges.seconds is not None]
    steps = max((gauges.step for gauges in record.of(Gauges)), default=0)
    return sorted(measured)[len(measured) // 2] * steps if measured else None


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
