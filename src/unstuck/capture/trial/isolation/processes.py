"""Everything that a trial started ends with it, also without a process namespace: orphans become our children, and
children are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Collection

from unstuck.capture.trial.isolation import kernel
from unstuck.capture.trial.isolation.errors import FAILED

ADOPTS = sys.platform == "linux"


def adopt_orphans() -> None:
    """From now on, what our children leave behind is found by `end_children`."""
    if ADOPTS:
        kernel.adopt_orphans()


def run(body: Callable[[], int]) -> int:
    """Call `body` in a process that ends when this one does; its exit code, once nothing that it started is left."""
    above = os.getppid()
    adopt_orphans()
    if ADOPTS:
        kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != above:
        return FAILED
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever sends it to the group means the program
    parent = os.getpid()
    program = os.fork()
    if program == 0:
        code = FAILED
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            close_folders()
            if ADOPTS:
                kernel.die_with_parent(signal.SIGKILL)
            if os.getppid() == parent:
                code = body()
        finally:
            os._exit(code)
    _, status = os.waitpid(program, 0)
    end_children()
    return end_alike(status)


def leave_keeper() -> None:
    """Go on in a child, in a session of its own. The process that called this stays, to end what the child leaves when
    it is killed, and dies as the child died. A signal to the group of either reaches one of them only."""
    if not ADOPTS:
        return
    adopt_orphans()
    kernel.die_with_parent(signal.SIGCONT)  # it may be killed when it has stopped us, and not yet ended us
    keeper = os.getpid()
    program = os.fork()
    if program == 0:
        os.setsid()
        kernel.die_with_parent(signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(FAILED)
        return
    code = FAILED
    try:
        os.closerange(0, 2)  # whoever talks to the child is to notice when it is gone
        while (ended := os.waitpid(-1, 0))[0] != program:
            pass
        end_children()
        code = end_alike(ended[1])
    finally:
        os._exit(code)


def end_with_keeper(end: Callable[[], None]) -> None:
    """When the keeper is killed, or we are asked to end, call this, which ends us."""
    if not ADOPTS:
        return
    ours = os.getpid()

    def asked(*_: object) -> None:
        if os.getpid() == ours:
            end()
        os._exit(FAILED)  # what a library forked has no part in this

    signal.signal(signal.SIGTERM, asked)
    kernel.die_with_parent(signal.SIGTERM)


def close_folders(but: int = -1) -> None:
    """Close all open folders: one that was opened before is a way around what forbids to write it, and a lock."""
    if not ADOPTS:
        return
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the listing itself is closed by now
            if number > 2 and number != but and stat.S_ISDIR(os.fstat(number).st_mode):
                os.close(number)


def end_children(but: Collection[int] = ()) -> None:
    """End all our children, those that they leave to us included."""
    spared = set(but)
    while left := [pid for pid in _children() if pid not in spared]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:  # it has become another user's
                spared.add(pid)
            except (ProcessLookupError, ChildProcessError):
                continue


def end_with_descendants(pid: int) -> None:
    """Kill a process and all that it started, if it adopts orphans; else only those that have not left it."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)  # so that it starts nothing meanwhile
    while below := _descendants(pid):
        killed = 0
        for one in below:
            with contextlib.suppress(OSError):
                os.kill(one, signal.SIGKILL)
                killed += 1
        if not killed:
            break
        time.sleep(0.01)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """All below a process that have not ended; none where the system cannot tell."""
    if not ADOPTS:
        return []
    found: list[int] = []
    above = {pid}
    parents = {one: _parent_of(one) for one in map(int, filter(str.isdigit, os.listdir("/proc")))}
    while above:
        above = {one for one, parent in parents.items() if parent in above}
        found += above
    return [one for one in found if not _has_ended(one)]


def _has_ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def end_alike(status: int) -> int:
    """End as a process with this status did: return its code, or die of the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _children() -> list[int]:
    """Processes whose parent we are; none where the system cannot tell."""
    if not ADOPTS:
        return []
    ours = os.getpid()
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent_of(pid) == ours]


def _parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
