"""The first and the last events of a record: how a run started, how it ended."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck import torches
from unstuck._version import __version__
from unstuck.capture.session import RunStopped
from unstuck.events import Crash, Event, Note, RunEnded, RunStarted, RunStatus

if TYPE_CHECKING:
    from unstuck.capture.session import Session

_LONGEST_MESSAGE = 4000


class RunEvents:
    """Records how a run starts and ends."""

    def __init__(self, writer: Callable[[Event], None], session: Session) -> None:
        self._write = writer
        self._session = session
        self._began = time.monotonic()
        self._processes = _processes_started()

    def begin(self, *, script: str, arguments: tuple[str, ...], source: bytes | None, watched: str = "run") -> None:
        """Record what is about to run."""
        self._write(
            RunStarted(
                script=script,
                arguments=arguments,
                started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                unstuck=__version__,
                python=platform.python_version(),
                torch=torches.installed(),
                process=os.getpid(),
                source_hash=hashlib.sha256(source).hexdigest() if source is not None else "",
                watched=watched,
            )
        )

    def end(self, error: BaseException | None, exit_code: int = 0) -> None:
        """Record how it ended, and by which exception."""
        status, reason = "finished", ""
        if isinstance(error, RunStopped):
            status, reason, exit_code = "stopped", error.reason, exit_code or RunStopped.CODE
        elif isinstance(error, SystemExit):
            status = "exited"
        elif isinstance(error, KeyboardInterrupt):
            status, exit_code = "interrupted", exit_code or 130
        elif error is not None:
            status, exit_code = "crashed", exit_code or 1
            self._session.guard.protect("the crash", self._crash)(error)
        seconds = round(time.monotonic() - self._began, 3)
        steps = self._session.steps
        others = 0 if steps else _processes_started() - self._processes
        if others:
            what = "1 process" if others == 1 else f"{others} processes"
            self._write(Note(text=f"what {what} did that the program started: only the first is watched"))
        self._write(
            RunEnded(
                step=steps, status=RunStatus(status), exit_code=exit_code, seconds=seconds, steps=steps, reason=reason
            )
        )

    def _crash(self, error: BaseException) -> None:
        frames = self._session.places.of_traceback(error.__traceback__)
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            frames += (self._session.places.of_file(error.filename, error.lineno, error.offset or 0),)
        self._write(
            Crash(
                step=self._session.steps,
                place=frames[-1] if frames else None,
                kind=type(error).__name__,
                message=str(error)[:_LONGEST_MESSAGE],
                frames=frames,
                **self._around(error),
            )
        )

    def _around(self, error: BaseException) -> dict[str, Any]:
        """What the failing call was given, if torch had been imported at all."""
        if "torch" not in sys.modules:
            return {}
        from unstuck.capture.crash.failing_call import examine
        from unstuck.capture.measure.tensors import reading

        with reading():
            return self._session.guard.protect("the cause of the crash", examine)(error, self._session.places) or {}


def _processes_started() -> int:
    """How many processes the program has started through multiprocessing, which keeps no public count of them."""
    process = sys.modules.get("multiprocessing.process")
    counter = getattr(process, "_process_counter", None)
    number = re.search(r"\d+", repr(counter))  # `count(3)`: the next one to be given
    return int(number.group()) - 1 if number else 0
