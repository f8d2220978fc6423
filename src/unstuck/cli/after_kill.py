"""A process that outlives a killed run and writes its report.

A signal handler in the program would not do: the program could see it, and a program that hangs in a kernel or in a
collective would no longer die of SIGTERM, since Python calls handlers only between two instructions.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

IGNORED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""A scheduler that ends a job sends these to all of its processes."""


def report_when_ended(report: Callable[[], object]) -> None:
    """Fork a process that calls `report` when this one has ended, in any way.

    Before torch is imported the fork costs little. Without `pidfd_open` the end of a process cannot be observed, and
    nothing is forked.
    """
    process = os.getpid()
    if (
        not hasattr(os, "pidfd_open") or process == 1 or threading.active_count() > 1
    ):  # children of process 1 die with it
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:  # twice, so that the program has no child it did not start
            _wait_and_report(process, report)
    finally:
        os._exit(0)


def _wait_and_report(process: int, report: Callable[[], object]) -> None:
    for name in IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # so that a reader of the program's output does not wait for us
    with contextlib.suppress(ProcessLookupError):
        import select

        select.select([os.pidfd_open(process)], [], [])
    report()
