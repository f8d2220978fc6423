"""Runs a program as python would and watches it: same `__main__`, arguments, tracebacks and exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

from unstuck.capture.launch.program import LaunchError, Program, find_module, find_script, set_stage
from unstuck.capture.launch.run_events import RunEvents
from unstuck.capture.observers.named import MAIN, NamedLoss, named_losses
from unstuck.capture.places import chain_of, is_ours
from unstuck.capture.session import Listener, RunStopped, Session
from unstuck.record import Writer

__all__ = ["LaunchError", "launch"]

_INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""


def launch(
    target: str,
    arguments: Sequence[str] = (),
    *,
    as_module: bool = False,
    record_path: str | os.PathLike[str],
    losses: Sequence[str] = (),
    every: int | None = None,
    closely: int | None = None,
    listener: Listener | None = None,
    when_ended: Callable[[], object] = lambda: None,
) -> int:
    """Run `python target arguments` (or `python -m target ...`) under watch and return its exit code.

    `losses` names functions and classes of the program, such as `losses:my_loss`, whose arguments are recorded;
    `every` asks for every Nth window, `closely` for all around one step; `when_ended` is called as soon as
    the program has ended.
    Raises `LaunchError` if there is no such program and `RecordError` if the record exists already.
    """
    program = find_program(target, as_module)
    named = named_losses(losses, program, target)
    writer = Writer(record_path)
    session = Session(writer, named, every, listener, closely)
    run = WatchedRun(program, target, arguments, writer, session)
    return run.start(named, when_ended)


class WatchedRun:
    """One run of a program under a session, on record from its beginning to its end."""

    def __init__(
        self, program: Program, target: str, arguments: Sequence[str], writer: Writer, session: Session
    ) -> None:
        self._program = program
        self._target = target
        self._arguments = list(arguments)
        self._writer = writer
        self._session = session
        self._run_events = RunEvents(writer, session)
        self.error: BaseException | None = None
        """What ended the program, if something did."""

    def start(self, losses: Sequence[NamedLoss] = (), when_ended: Callable[[], object] = lambda: None) -> int:
        """Run it to its end and return its exit code."""
        session = self._session
        self._run_events.begin(script=self._target, arguments=tuple(self._arguments), source=self._program.source())
        session.install()
        process = os.getpid()
        try:
            try:
                error = _run(self._program, self._arguments, session, losses, when_ended)
            except KeyboardInterrupt as again:  # pressed once more while the first one was on its way
                when_ended()
                error = again
            self.error = error
            exit_code = _exit_code(error)
            _wait_for_threads()
        finally:
            session.remove()
        if os.getpid() != process:
            sys.exit(exit_code)  # a child the program forked: neither the record nor the report is its own
        self._close(error, exit_code)
        return exit_code

    def stop(self, reason: str) -> None:
        """In the middle of the run: detach, and end the record. The program itself is left as it is."""
        self._session.remove()
        self._close(RunStopped(reason), 0)

    def _close(self, error: BaseException | None, exit_code: int) -> None:
        self._run_events.end(error, exit_code)
        self._writer.close()
        if self._writer.warning:
            print(f"unstuck: {self._writer.warning}", file=sys.stderr)


def find_program(target: str, as_module: bool) -> Program:
    """What `python target` or `python -m target` runs; its directory is put in front of `sys.path`."""
    if not as_module:
        program = find_script(target)
        _enter(program.directory)
        return program
    _enter(os.getcwd())  # the module is looked for there first
    return find_module(target)


def _enter(directory: str) -> None:
    """Replace the directory of our own program in front of `sys.path` by that of the user's."""
    if not sys.flags.safe_path:
        sys.path[0:1] = [directory]


def _run(
    program: Program,
    arguments: list[str],
    session: Session,
    losses: Sequence[NamedLoss],
    when_ended: Callable[[], object],
) -> BaseException | None:
    main = set_stage(program, arguments)
    own = {loss.name: loss for loss in losses if MAIN in loss.modules}
    defined = session.guard.protect("a loss", session.loss_defined)
    try:
        for code, name in program.parts(own):
            exec(code, main.__dict__)
            if name:
                defined(own[name], main)
    except LaunchError:
        raise
    except BaseException as error:
        when_ended()
        _hide_our_frames(error)
        return error
    when_ended()
    return None


def _hide_our_frames(error: BaseException) -> None:
    """Take our frames out of the traceback, and out of those of the exceptions it came from."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        current = todo.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _without_ours(current.__traceback__)
        todo += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            todo += current.exceptions


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept: TracebackType | None = None
    for entry in reversed(list(chain_of(trace))):
        if not is_ours(entry.tb_frame.f_code):
            # An instruction without a line, as Ctrl-C may hit one, has None here, which only -1 brings about again.
            kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno or -1)
    return kept


def _exit_code(error: BaseException | None) -> int:
    """The code python would exit with, after saying what python would say."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _code_of_exit(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _code_of_exit(leaving)
    except BaseException as second:
        _hide_our_frames(second)
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(second)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, error.__traceback__)
    return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _code_of_exit(leaving: SystemExit) -> int:
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code)
    with contextlib.suppress(Exception):  # the program may have closed it
        sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _wait_for_threads() -> None:
    """Python waits for threads that are not daemons before it ends; they are part of the run."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            try:
                thread.join()
            except KeyboardInterrupt:
                return  # python itself waits again when it ends, and can be interrupted again
