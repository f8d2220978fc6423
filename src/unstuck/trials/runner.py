"""Runs trials of one program, a few at a time, each in a process of its own, and reads what they recorded."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from unstuck.capture.trial.layout import LAYER, NOTES, OUTPUT, TOKEN, TRIAL
from unstuck.events import Gauges
from unstuck.findings.curve import Curve, curve_of
from unstuck.findings.results import Isolation, Status
from unstuck.interventions import Intervention
from unstuck.record import Record, RecordError, read
from unstuck.record.in_use import hold
from unstuck.record.own_folder import NotOurs, keep_only
from unstuck.record.store import RECORD_NAME
from unstuck.regular import read_regular
from unstuck.trials.changed_files import Files
from unstuck.trials.interrupts import deferring_interrupts, end_at_once, forget_to_end, has_arrived
from unstuck.trials.layers import remove_layer, sweep
from unstuck.trials.trial import StopReason, Trial

ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than a trial
    "MPLBACKEND": "Agg",
    "TOKENIZERS_PARALLELISM": "false",
    TRIAL: "1",  # a watch in the script forwards nothing
}
"""Trials open no window, draw the same numbers, and reach no tracker."""
STARTUP = 60.0
"""Seconds that torch may take to be imported."""
POLL = 0.2
KEPT = (RECORD_NAME, OUTPUT, NOTES)
"""The files in the folder of a trial that are ours. The program can write there too."""
LARGEST_NOTES = 256 * 2**20
NO_TRIAL = 70
"""Exit code of a trial that could not be set up."""
GRACE = 1.5
"""Seconds between asking a trial to end and ending it."""
HURRY = 0.5
"""The same, and what the process that forks may take to end, when somebody waits for us to end."""


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
    status: Status
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
            return read_regular(self.folder / OUTPUT, LARGEST_NOTES).decode(errors="replace")
        except OSError:
            return ""

    @property
    def ran_out_of_time(self) -> bool:
        """Was it ended because its time was over, whether or not it could still write that down?"""
        return self.status is Status.KILLED or self.reason == StopReason.TIME_OVER

    @property
    def failure(self) -> str:
        """How it failed by itself, other than by an exception: `exited with code 3`; empty if it did not."""
        if not self.exit_code or self.status in (Status.STOPPED, Status.KILLED, Status.FAILED, Status.INTERRUPTED):
            return ""
        if self.exit_code < 0:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        return f"exited with code {self.exit_code}" if self.status is Status.EXITED else ""

    @property
    def last_line(self) -> str:
        """The last line that the program printed."""
        return (self.output.strip().splitlines() or ["no message"])[-1]

    def record(self) -> Record:
        """Everything that was recorded. Raises `RecordError`."""
        return read(self.folder)

    def record_or_none(self) -> Record | None:
        """The record, if there is one that can be read."""
        try:
            return self.record()
        except RecordError:
            return None


class _Running(msgspec.Struct):
    variant: Variant
    folder: Path
    seconds: float
    """What it may take once it has begun."""
    until: float
    """When it ends in any case."""
    token: str
    began: float = msgspec.field(default_factory=time.monotonic)
    pid: int = 0
    asked: bool = False
    killed: bool = False
    exit_code: int | None = None

    @property
    def deadline(self) -> float:
        """Torch may have to be imported before it begins."""
        return min(self.began + self.seconds + (0.0 if self.pid else STARTUP), self.until)

    def enforce_deadline(self) -> None:
        """Ask it to end when its time is over, and kill it a little later."""
        late = time.monotonic() - self.deadline
        if self.pid and late > 0:
            self.ask_to_end()
        if self.pid and late > GRACE:
            self.kill()

    def ask_to_end(self) -> None:
        """It writes down what it knows, if it can."""
        if not self.asked:
            self.asked = True
            _signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """It may not listen, or be busy with one long step."""
        if not self.killed:
            self.killed = True
            _signal(self.pid, signal.SIGKILL)

    def has_begun(self, pid: int) -> None:
        """Its time begins when torch has been imported."""
        self.pid, self.began = pid, time.monotonic()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while trials ran: what those showed that ran, and those before them."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        super().__init__()
        self.outcomes = tuple(outcomes)


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
        self._running: dict[int, _Running] = {}
        self._permissions = 0o755
        self._prepared: float | None = None
        self._is_gone = False

    def __enter__(self) -> Runner:
        sweep()
        with deferring_interrupts():  # one that came in between would leave a process that nobody ends
            self._start()
        if has_arrived():
            self.__exit__()
            raise KeyboardInterrupt
        return self

    def _start(self) -> None:
        """Start the process that forks."""
        from unstuck.capture.trial import trackers

        environment = {"OMP_NUM_THREADS": str(self._threads), **trackers.environment(os.environ), **ENVIRONMENT}
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = hold(self.folder)
        # A program could leave a setuid file: until it is removed, nobody else gets to it.
        self._permissions = stat.S_IMODE(self.folder.stat().st_mode)
        self.folder.chmod(0o700)
        (self.folder / LAYER).mkdir()
        assignment = {
            "home": self._home,
            "folder": str(self.folder),
            "target": self.program.target,
            "arguments": self.program.arguments,
        }
        command = [sys.executable, "-m", "unstuck.trials.zygote", json.dumps(assignment)]
        pipe = subprocess.PIPE
        # Not in the working directory, whose modules must not be taken for those that torch imports. In a session of
        # its own: what a terminal sends on Ctrl-C is for us to pass on, and whoever kills our process group leaves
        # somebody who cleans up.
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
        end_at_once(self._end_in_a_hurry)

    def __exit__(self, *_: object) -> None:
        with deferring_interrupts():  # a Ctrl-C that comes now does not lose what was found out
            self._end()
            remove_layer(self.folder)
            with contextlib.suppress(OSError):
                self.folder.chmod(self._permissions)
        forget_to_end(self._end_in_a_hurry)

    def _end_in_a_hurry(self) -> None:
        """For a signal handler, which must not wait. The process that forks notices that we are gone, and cleans up."""
        for trial in self._running.values():
            if trial.pid:
                trial.kill()

    def _end(self) -> None:
        """End everything that runs. The process that forks is not waited for where it is busy importing."""
        process = self._process
        assert process is not None
        for trial in self._running.values():
            if trial.pid:
                trial.kill()
        with contextlib.suppress(BrokenPipeError):  # it is gone already
            _pipe(process.stdin).close()
        try:
            process.wait(HURRY)
        except subprocess.TimeoutExpired:
            _end_all(process.pid)
            process.wait()
        _pipe(process.stdout).close()

    def run(
        self,
        variants: Sequence[Variant],
        seconds: float,
        progress: Progress = lambda variant, folder: None,
        until: float = math.inf,
    ) -> list[Outcome]:
        """Run them all, each for so many seconds at the most, and none after `until` on the monotonic clock.

        Raises `Interrupted` on Ctrl-C.
        """
        waiting = list(enumerate(variants))
        running = self._running
        done: dict[int, Outcome] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    number, variant = waiting.pop(0)
                    if time.monotonic() < until:
                        running[number] = self._begin(number, variant, seconds, until)
                    else:
                        done[number] = _never_begun(variant, self.folder)
                self._listen()
                for number, trial in list(running.items()):
                    progress(trial.variant, trial.folder)
                    if trial.exit_code is not None:
                        done[number] = _outcome(trial)
                        del running[number]  # not sooner: a Ctrl-C in between would lose it
                    elif not trial.pid and time.monotonic() > trial.deadline:
                        self._give_up()
                    else:
                        trial.enforce_deadline()
        except KeyboardInterrupt:
            self._end_trials()
            done |= {number: _outcome(trial) for number, trial in running.items() if trial.pid}
            raise Interrupted([done[number] for number in sorted(done)]) from None
        return [done[number] for number in sorted(done)]

    def _end_trials(self) -> None:
        """At once, with a moment to write down what they know."""
        begun = [trial for trial in self._running.values() if trial.pid]
        for action in (_Running.ask_to_end, _Running.kill):
            for trial in begun:
                action(trial)
            deadline = time.monotonic() + HURRY
            while time.monotonic() < deadline and any(trial.exit_code is None for trial in begun):
                self._listen()

    def _begin(self, number: int, variant: Variant, seconds: float, until: float) -> _Running:
        self._count += 1
        folder = self.folder / f"{self._count:02}-{variant.name}"
        folder.mkdir(parents=True)
        trial = Trial(
            target=self.program.target,
            arguments=self.program.arguments,
            as_module=self.program.as_module,
            home=self._home,
            folder=str(folder),
            token=os.urandom(8).hex(),
            changes=variant.changes,
            every=variant.every,
            show_data=variant.show_data,
        )
        self._ask({"id": number, "trial": trial})
        return _Running(variant, folder, seconds, until, trial.token)

    def await_isolation(self) -> Isolation | None:
        """What keeps trials apart here, whether one was asked for or not; None if nothing can be run."""
        assert self._process is not None
        while self.isolation is None and self._process.poll() is None:
            self._listen()
        return self.isolation

    def _give_up(self) -> None:
        """End the process that forks: it does not answer."""
        assert self._process is not None
        _end_all(self._process.pid)
        for trial in self._running.values():
            trial.asked = trial.asked or time.monotonic() > trial.until

    def prepare(self, modules: Sequence[str], until: float = math.inf) -> float:
        """Have these modules imported once, for all trials to come; the seconds that each of them saves by it."""
        self._prepared = None
        self._ask({"modules": modules})
        while self._prepared is None and not self._is_gone and time.monotonic() < until:
            self._listen()
        return self._prepared or 0.0

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):  # the process is gone, which `run` notices
            # Not msgspec, which refuses a path that is not UTF-8.
            _pipe(self._process.stdin).write(json.dumps(msgspec.to_builtins(request)).encode() + b"\n")
            _pipe(self._process.stdin).flush()

    def _listen(self) -> None:
        """Take in what the process that forks says, if it says anything for a moment."""
        assert self._process is not None
        stream = _pipe(self._process.stdout)
        ready, _, _ = select.select([stream], [], [], POLL)
        data = os.read(stream.fileno(), 1 << 16) if ready else b""
        self._is_gone = bool(ready) and not data
        if self._is_gone:
            for orphan in self._running.values():  # its trials go with it
                orphan.exit_code = NO_TRIAL
                if orphan.pid:
                    _signal(orphan.pid, signal.SIGKILL)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            answer = msgspec.json.decode(line)
            if "isolation" in answer:
                self.isolation, self.isolation_reason = Isolation(answer["isolation"]), answer["reason"]
                if self.isolation is Isolation.COPIES:
                    self.files = Files(self._home)
                continue
            trial = self._running.get(answer.get("id"))
            if "prepared" in answer:
                self._prepared = answer["prepared"]
            elif trial is not None and "pid" in answer:
                trial.has_begun(answer["pid"])
            elif trial is not None:
                trial.exit_code = answer["exit"]


def _never_begun(variant: Variant, folder: Path) -> Outcome:
    """The time was over before it could begin."""
    return Outcome(
        variant=variant,
        folder=folder / "never-begun",
        status=Status.KILLED,
        curve=Curve(),
        seconds=0.0,
        reason=StopReason.TIME_OVER,
    )


def _outcome(trial: _Running) -> Outcome:
    seconds = time.monotonic() - trial.began
    with contextlib.suppress(OSError, NotOurs):
        keep_only(trial.folder, KEPT, below=trial.folder.parent)
    notes = _notes(trial)
    try:
        record = read(trial.folder)
    except RecordError:
        record = None
    ended = record.ended if record else None
    return Outcome(
        variant=trial.variant,
        folder=trial.folder,
        status=_status(trial, record),
        curve=_curve(record, notes.get("losses") or []),
        seconds=seconds,
        exit_code=trial.exit_code,
        reason=ended.reason if ended else "",
        training_seconds=_training_seconds(record) if record else None,
        notes=notes,
    )


def _notes(trial: _Running) -> dict[str, Any]:
    """What the trial noted; nothing if it did not come to it, or if the program wrote something in its place."""
    try:
        notes = msgspec.json.decode(read_regular(trial.folder / NOTES, LARGEST_NOTES), type=dict[str, Any])
    except (OSError, ValueError, RecursionError):
        return {}
    return notes if notes.pop(TOKEN, None) == trial.token else {}


def _status(trial: _Running, record: Record | None) -> Status:
    if record is not None and record.ended is not None and str(record.ended.status) in list(Status):
        return Status(record.ended.status)
    # Its end is not on record: it left by `os._exit`, say, or by a fault in a library.
    if trial.asked:
        return Status.KILLED
    if record is None or trial.exit_code == NO_TRIAL:
        return Status.FAILED
    return Status.CRASHED if trial.exit_code else Status.EXITED


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


def _end_all(pid: int) -> None:
    """Kill the process that forks with all that it and the libraries in it started."""
    from unstuck.capture.trial.isolation.processes import end_with_descendants

    end_with_descendants(pid)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
