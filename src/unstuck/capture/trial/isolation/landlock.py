"""Where the kernel gives us no view of our own, it can still forbid: with Landlock every write outside of the folder of
the run, for a process and all that it starts.

Landlock (needs no privilege, and containers allow it) knows nothing of permissions, owners, times and extended
attributes; `filters` answers changes to these with success, and they are not carried out, anywhere.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from unstuck.capture.trial.isolation import devices, filters, kernel
from unstuck.capture.trial.isolation.errors import NotPossible

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_SIGNALS = 1 << 1

OLDEST, FORBIDS_SIGNALS = 3, 6
"""Versions of Landlock: of Linux 6.2, and of 6.12, which keeps signals from processes outside."""
CAPABILITIES = frozenset({0, 1, 3, 4, 6, 7})
"""What root needs for files, and nothing that reaches beyond them."""
SHARED_MEMORY = "/dev/shm"
"""Shared memory and semaphores have no other place, so what lies there is not protected."""


def check(home: str) -> None:
    """Raise `NotPossible` where this kernel cannot forbid enough."""
    if kernel.landlock_version() < OLDEST:
        raise NotPossible("this kernel has no Landlock that forbids to empty files (Linux 6.2 has)")
    if not filters.are_known():
        raise NotPossible(f"system calls of {platform.machine()} are not known here")
    if os.path.realpath(home).startswith(SHARED_MEMORY + os.sep):
        raise NotPossible(f"{home} lies in shared memory, which has to stay writable")


def forbid_writes(folders: Sequence[str]) -> None:
    """From now on this process and all that it starts can write below these folders only, and into devices."""
    handled = _WRITE_FILE | _REMOVE_AND_MAKE | _REFER | _TRUNCATE
    into = _WRITE_FILE | _TRUNCATE
    used = [f"/dev/{name}" for name in os.listdir("/dev") if devices.is_used(name)]
    allowed = [(folder, handled) for folder in (*folders, SHARED_MEMORY)]
    scoped = _SIGNALS if kernel.landlock_version() >= FORBIDS_SIGNALS else 0
    kernel.landlock(handled, scoped, [*allowed, *((device, into) for device in used)])
