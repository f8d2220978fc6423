"""A process that outlives a run which is killed, and makes the report that the run itself no longer can.

A handler of ours in the program would not do: the program would find it there, and a program that hangs in a kernel or
in a collective would no longer die of SIGTERM, since python calls handlers between two instructions only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable

DEAF_TO = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Whoever ends a job sends these to all of its processes."""


def leave_behind(report: Callable[[], object]) -> None:
    """When this process is over, however it ended, call `report` in one that was forked off here.

    Before torch is imported this costs next to nothing. Where the system cannot tell of the end of a process, nobody
    is left behind.
    """
    process = os.getpid()
    if not hasattr(os, "pidfd_open") or process == 1 or threading.active_count() > 1:  # the children of 1 die with it
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    try:
        if os.fork() == 0:  # the program is not to find a child that it did not start
            _survive(process, report)
    finally:
        os._exit(0)


def _survive(process: int, report: Callable[[], object]) -> None:
    for name in DEAF_TO:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)  # whoever reads the program's output is not to wait for us
    with contextlib.suppress(ProcessLookupError):
        import select

        select.select([os.pidfd_open(process)], [], [])
    report()
