"""A process that judges files: the side that controls it, and the code that runs in it."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from unstuck.findings.result import Problem
from unstuck.findings.verdict import Verdict
from unstuck.lint.budget import OUT_OF_MEMORY, PATIENCE, Beyond, Budget, memory_limit
from unstuck.lint.outcome import Outcome, outcome_of
from unstuck.rule import Rule, rules_of_other_packages, source_rules
from unstuck.source.documents.files import UNREADABLE
from unstuck.source.reader.project import Modules, rare_collection

SECONDS_HERE = 1.0
GIGABYTES_HERE = 0.25
"""What a file may take in the process of the command, by the clock and in addition to what is used already."""
LENGTH = 8
"""Bytes of the length in front of a message."""


def is_possible() -> bool:
    """Can processes be forked and limited here? Not on Windows, where files are judged in our own process."""
    return hasattr(os, "fork")


class NoProcess(OSError):
    """The system refused to start a process."""


class Task(msgspec.Struct):
    """Files to judge, in order, with the rules of these codes."""

    names: list[str]
    codes: list[str]
    text: str | None = None
    """Replaces the file's content on disk."""
    remembers: bool = False
    """May modules read by an earlier task be reused?"""
    folder: str = ""


class Worker:
    """A process that takes tasks and answers with one outcome for each file."""

    _alive: ClassVar[set[Worker]] = set()

    def __init__(self) -> None:
        import threading  # where one file is judged in this process, nothing needs it; neither does it `select`

        self.has_ended = False
        self._waiting: list[str] = []
        self._text: str | None = None
        self._deadline = 0.0
        # A process with threads must not fork: a lock held by another thread would stay locked in the child.
        self._process, self._requests, self._answers = _started(_spawn if threading.active_count() > 1 else _fork)
        Worker._alive.add(self)

    def give(self, task: Task) -> None:
        """Start a task; the previous one must be done."""
        task.folder = os.getcwd()
        self._waiting, self._text = list(task.names), task.text
        self._start_clock()
        with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is read
            _send(self._requests, msgspec.to_builtins(task))

    @staticmethod
    def answering(workers: Collection[Worker]) -> list[Worker]:
        """Wait for workers that have an answer, have died, or have taken too long."""
        import select

        left = min(worker._deadline for worker in workers) - time.monotonic()
        ready, _, _ = select.select([worker._answers for worker in workers], [], [], max(left, 0.0))
        now = time.monotonic()
        return [worker for worker in workers if worker._answers in ready or worker._deadline <= now]

    def answer(self) -> Outcome:
        """The outcome of the next file, or the reason why it was skipped; then the worker has ended."""
        name = self._waiting.pop(0)
        import select

        is_late = not select.select([self._answers], [], [], 0)[0]
        answer = None if is_late else _receive(self._answers)
        if answer is not None:
            self._start_clock()
            return msgspec.convert(answer, Outcome)
        if is_late:
            self.end()
            return _skipped(name, self._budget(name), Beyond.TIME)
        return _skipped(name, self._budget(name), _cause(self._reap()))

    def end(self) -> None:
        """Kill the process."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int:
        """How it ended: its exit code, or the negative number of the signal."""
        self.has_ended = True
        Worker._alive.discard(self)
        os.close(self._requests)
        os.close(self._answers)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        except ChildProcessError:  # other code in this process waits for all children
            return 0

    def _start_clock(self) -> None:
        if self._waiting:
            self._deadline = time.monotonic() + PATIENCE * self._budget(self._waiting[0]).seconds

    def _budget(self, name: str) -> Budget:
        return _budget_for(name, self._text)


def _budget_for(name: str, text: str | None) -> Budget:
    if text is not None:
        return Budget(len(text))
    try:
        return Budget(os.stat(name).st_size)
    except (OSError, ValueError):
        return Budget(0)


def _skipped(name: str, budget: Budget, why: Beyond) -> Outcome:
    path = Path(name)
    return Outcome(None, Problem(budget.sentence(path, why)), {os.path.abspath(path): UNREADABLE})


def _cause(code: int) -> Beyond:
    if code == -signal.SIGXCPU:
        return Beyond.TIME
    # The kernel kills processes with SIGKILL when memory runs out.
    return Beyond.MEMORY if code in (OUT_OF_MEMORY, -signal.SIGKILL) else Beyond.CRASH


def _started(start: Callable[[int, int, int, int], int]) -> tuple[int, int, int]:
    """Start a worker process; returns its number and our ends of its pipes."""
    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        process = start(*ends)
    except OSError as error:
        for end in ends:
            os.close(end)
        raise NoProcess(error.errno, error.strerror) from None
    requests, to_worker, from_worker, answers = ends
    os.close(requests)
    os.close(answers)
    return process, to_worker, from_worker


def _fork(requests: int, to_worker: int, from_worker: int, answers: int) -> int:
    """A copy of this process, which has already loaded the rules."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        # A worker ends when its pipe closes, so no other worker may keep an end of that pipe open.
        for worker in Worker._alive:
            os.close(worker._requests)
            os.close(worker._answers)
        os.close(to_worker)
        os.close(from_worker)
        _be_quiet()
        os.setsid()  # Ctrl-C reaches only the command, which ends us
        serve(requests, answers)
        code = 0
    except Exception:
        import traceback

        traceback.print_exc()  # visible only if UNSTUCK_RAISE is set
    finally:
        os._exit(code)  # the copied command must not continue here


def _be_quiet() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        if stream < 2 or not os.environ.get("UNSTUCK_RAISE"):
            os.dup2(nothing, stream)
    os.close(nothing)


def _spawn(requests: int, to_worker: int, from_worker: int, answers: int) -> int:
    """A new Python process, if this one cannot be forked."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({requests}, {answers})"
    for end in (requests, answers):
        os.set_inheritable(end, True)
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", program],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, nothing, stream) for stream in (0, 1, 2)],
            setpgroup=0,
        )
    finally:
        os.close(nothing)


def serve(requests: int, answers: int) -> None:
    """The loop of a worker: judge the files it receives, until the pipe closes."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    modules = Modules()
    try:
        while (message := _receive(requests)) is not None:
            task = msgspec.convert(message, Task)
            os.chdir(task.folder)
            modules = modules if task.remembers else Modules()
            rules = [rule for rule in source_rules() if rule.code in task.codes]
            with rare_collection():
                for name in task.names:
                    _budget_for(name, task.text).enforce()
                    outcome = judge_here(Path(name), rules, modules, task.text)
                    _send(answers, msgspec.to_builtins(outcome, builtin_types=(bytes,)))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


def judge_here(path: Path, rules: Sequence[Rule], modules: Modules, text: str | None = None) -> Outcome:
    """Judge a file in this process. A bug of ours in one file does not affect the others."""
    try:
        return outcome_of(path, rules, modules, text)
    except MemoryError:
        raise
    except Exception as error:
        if os.environ.get("UNSTUCK_RAISE"):
            raise
        sentence = f"{path} could not be judged: {type(error).__name__}: {error}"
        return Outcome(Verdict(failures=(sentence,)), None, {os.path.abspath(path): UNREADABLE})


class _TakesLong(BaseException):
    """Raised by the clock of `attempt_here`. Not an `Exception`, which would be taken for a bug in a rule."""


def attempt_here(path: Path, rules: Sequence[Rule]) -> Outcome | None:
    """Judge a file in this process, or None if that takes more than a little time or memory, or cannot be limited.

    It then costs a moment to give the file to a worker, which is stopped by the kernel at the limits of `Budget`.
    """

    def interrupt(number: int, frame: object) -> None:
        raise _TakesLong

    if not {*rules}.isdisjoint(rules_of_other_packages()) or signal.getitimer(signal.ITIMER_REAL)[0]:
        return None  # in a worker, what other people's rules print goes nowhere
    try:
        before = signal.signal(signal.SIGALRM, interrupt)
    except ValueError:  # not in the main thread
        return None
    try:
        with memory_limit(GIGABYTES_HERE), rare_collection():
            signal.setitimer(signal.ITIMER_REAL, SECONDS_HERE)
            try:
                return judge_here(path, rules, Modules())
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except (_TakesLong, MemoryError):
        return None
    finally:
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)  # None: it was not python that set it


def _send(pipe: int, message: Any) -> None:
    # Not msgpack, which cannot encode file names that are not UTF-8.
    raw = marshal.dumps(message)
    waiting = memoryview(len(raw).to_bytes(LENGTH, "big") + raw)
    while waiting:
        waiting = waiting[os.write(pipe, waiting) :]


def _receive(pipe: int) -> Any:
    """A complete message, or None if the other side has ended."""
    size = _read(pipe, LENGTH)
    raw = _read(pipe, int.from_bytes(size, "big")) if size else None
    return marshal.loads(raw) if raw else None


def _read(pipe: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(pipe, min(size, 2**20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
