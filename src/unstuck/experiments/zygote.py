"""A process that has imported torch and forks itself for every trial, so that a trial starts in an instant.

Reads one line of JSON per trial on stdin and answers on stdout: `{"id": 1, "pid": 42}` when it has begun,
`{"id": 1, "exit": 0}` when it has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence

import msgspec

from unstuck.interventions import STAGE, Trial

OUTPUT = "output.txt"
_answers = 1
"""Where the parent reads."""


class Request(msgspec.Struct):
    """What the parent asks for: a trial, or modules to import so that the next trials find them."""

    id: int = 0
    trial: Trial | None = None
    modules: tuple[str, ...] = ()


def main() -> None:
    """Serve until stdin is closed, then leave nothing running."""
    global _answers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us when it ends
    _answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what modules print when they are imported
    try:
        _import_what_trials_need()
    except (AttributeError, ImportError) as error:
        sys.exit(f"unstuck: experiments do not work with this torch ({type(error).__name__}: {error})")
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, int] = {}
    folders: list[str] = []
    pending = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report_ended(running)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                request = msgspec.json.decode(line, type=Request)
                _import_all(request.modules)
                if request.trial is not None:
                    folders.append(request.trial.folder)
                    _begin(request.id, request.trial, running)
    _leave_nothing(running, folders)


def _import_what_trials_need() -> None:
    """Building an optimizer imports torch._dynamo, which takes longer than a short trial."""
    import importlib

    for name in ("numpy", "torch._dynamo", "unstuck.capture.attach", "unstuck.capture.trial"):
        try:
            importlib.import_module(name)
        except ImportError:
            if name.startswith("unstuck"):
                raise
    importlib.import_module("unstuck.capture.interventions")


def _import_all(names: Sequence[str]) -> None:
    import importlib

    for name in names:
        # What cannot be imported here, the trial imports or fails to import itself.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)


def _begin(number: int, trial: Trial, running: dict[int, int]) -> None:
    pid = os.fork()
    if pid == 0:
        _become(trial)
    running[pid] = number
    _say({"id": number, "pid": pid})


def _report_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        number = running.pop(pid, None)
        _kill(pid)  # what it started and left behind
        if number is not None:
            _say({"id": number, "exit": os.waitstatus_to_exitcode(status)})


def _leave_nothing(running: Iterable[int], folders: Iterable[str]) -> None:
    """End what still runs, and remove the stages: the parent may have been killed."""
    from unstuck.capture.stage import remove_stage

    for pid in running:
        _kill(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    for folder in folders:
        remove_stage(os.path.join(folder, STAGE))


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _become(trial: Trial) -> None:
    """Be the trial, in a process group of its own, then end."""
    code = 70
    try:
        os.setsid()
        os.close(_answers)  # the parent is to notice when the process that forks is gone
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        output = os.open(os.path.join(trial.folder, OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        empty = os.open(os.devnull, os.O_RDONLY)
        for wanted, stream in ((empty, 0), (output, 1), (output, 2)):
            os.dup2(wanted, stream)
        from unstuck.capture.trial import perform

        code = perform(trial)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for written in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                written.flush()
        os._exit(code)


def _say(answer: dict[str, object]) -> None:
    os.write(_answers, msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    main()
