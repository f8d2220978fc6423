"""A process that has imported torch and forks itself for every trial, so that a trial starts in an instant.

Its first argument says what it will try. It moves to where it cannot write to the user's files before it imports
anything. Then it reads one line of JSON per trial on stdin and answers on stdout: once which way of isolation
holds, `{"id": 1, "pid": 42}` when a trial has begun, `{"id": 1, "exit": 0}` when it has ended, `{"prepared": 2.5}` when
modules are imported, with the seconds it took.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Collection, Sequence

import msgspec

from unstuck.capture.trial.isolation import Ground, isolate
from unstuck.capture.trial.isolation.errors import FAILED
from unstuck.capture.trial.isolation.processes import adopt_orphans, end_children, end_with_keeper, leave_keeper
from unstuck.capture.trial.layout import OUTPUT
from unstuck.findings.results import Isolation
from unstuck.importable import importable
from unstuck.trials.trial import Trial

_answers = 1
"""Where the parent reads."""


class Request(msgspec.Struct):
    """What the parent asks for: a trial, or modules to import so that the next trials find them."""

    id: int = 0
    trial: Trial | None = None
    modules: tuple[str, ...] | None = None


class Assignment(msgspec.Struct):
    """Whose trials these are."""

    home: str
    """The working directory of the program."""
    folder: str
    """That of the run, which holds those of the trials."""
    target: str
    arguments: tuple[str, ...] = ()


def main() -> None:
    """Serve until stdin is closed, then leave nothing running."""
    global _answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us when it ends
    leave_keeper()
    _answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what modules print when they are imported
    assignment = msgspec.convert(json.loads(sys.argv[1]), type=Assignment)
    script = os.path.join(assignment.home, assignment.target)
    ground = isolate(assignment.home, assignment.folder, script, assignment.arguments)
    _say({"isolation": ground.kind, "reason": ground.reason})
    running: dict[int, tuple[int, str]] = {}
    adopt_orphans()  # a library may start a daemon when it is imported
    end_with_keeper(lambda: _leave_nothing(ground, running))
    try:
        _import_what_trials_need()
    except (AttributeError, ImportError) as error:
        sys.exit(f"unstuck: experiments do not work with this torch ({type(error).__name__}: {error})")
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pending = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(ground, running)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                request = msgspec.convert(json.loads(line), type=Request)
                if request.modules is not None:
                    _say({"prepared": _import_all(request.modules)})
                if request.trial is not None:
                    _begin(ground, request.id, request.trial, running)
    _leave_nothing(ground, running)
    os._exit(0)  # there is nothing to tidy up in libraries, and somebody may wait


def _import_what_trials_need() -> None:
    """Building an optimizer imports torch._dynamo, which takes longer than a short trial."""
    import importlib

    for name in ("numpy", "torch._dynamo"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import unstuck.capture.torch_hooks.attach
    import unstuck.capture.trial
    import unstuck.trials.perform

    for name, _ in importable(unstuck.capture.trial.__path__):
        importlib.import_module(f"unstuck.capture.trial.{name}")


def _import_all(names: Sequence[str]) -> float:
    """The seconds that it took."""
    import importlib

    began = time.monotonic()
    for name in names:
        # What cannot be imported here, the trial imports or fails to import itself.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
    return time.monotonic() - began


def _begin(ground: Ground, number: int, trial: Trial, running: dict[int, tuple[int, str]]) -> None:
    pid = os.fork()
    if pid == 0:
        _become(ground, trial)
    running[pid] = number, trial.folder
    _say({"id": number, "pid": pid})


def _report_ended(ground: Ground, running: dict[int, tuple[int, str]]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ended = running.pop(pid, None)
        if ended is not None:
            number, folder = ended
            _leave_nothing_of(ground, pid, folder, running)
            _say({"id": number, "exit": os.waitstatus_to_exitcode(status)})


def _leave_nothing(ground: Ground, running: dict[int, tuple[int, str]]) -> None:
    """End what still runs, and remove what it wrote: the parent may have been killed."""
    for pid, (_, folder) in list(running.items()):
        _kill(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        del running[pid]
        _leave_nothing_of(ground, pid, folder, running)
    end_children()
    with contextlib.suppress(OSError):
        ground.end()


def _leave_nothing_of(ground: Ground, pid: int, folder: str, running: Collection[int]) -> None:
    """End what a trial left behind, if it was killed before it could do so itself, and remove what it wrote."""
    _kill(pid)
    if ground.kind is not Isolation.OVERLAY:
        end_children(but=running)
    with contextlib.suppress(OSError):  # the parent tries again
        ground.clear(folder)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _become(ground: Ground, trial: Trial) -> None:
    """Be the trial, in a process group of its own, then end."""
    code = FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        os.close(_answers)  # the parent is to notice when the process that forks is gone
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        output = os.open(os.path.join(ground.real(trial.folder), OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        empty = os.open(os.devnull, os.O_RDONLY)
        for wanted, stream in ((empty, 0), (output, 1), (output, 2)):
            os.dup2(wanted, stream)
        code = ground.run(trial.folder, lambda folder: _perform(trial, folder, ground.kind))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _perform(trial: Trial, folder: str, isolation: Isolation) -> int:
    code = FAILED
    try:
        from unstuck.trials.perform import perform

        code = perform(trial, folder, isolation)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for written in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                written.flush()
    return code


def _say(answer: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # stdin will say that the parent is gone
        os.write(_answers, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
