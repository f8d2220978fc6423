"""Where the kernel gives us no view of our own, it can still forbid: with Landlock every write outside of the folder of
the run, for a process and all that it starts.

Landlock (Linux 5.13 and later; needs no privilege, and containers allow it) knows nothing of permissions, owners, times
and extended attributes; changes to these are answered with success and not carried out, anywhere.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from unstuck.capture.isolation import kernel
from unstuck.capture.isolation.errors import NotPossible

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_SIGNALS = 1 << 1

DEVICES = ("null", "zero", "full", "tty", "ptmx", "pts", "random", "urandom", "kfd", "dri", "infiniband", "fuse")
SHARED_MEMORY = "/dev/shm"
"""Shared memory and semaphores have no other place, so what lies there is not protected."""

_EACCES, _ENOSYS = 13, 38
_UNIFORM = {452: 0, 463: 0, 466: 0, 469: _ENOSYS, 425: _ENOSYS}
"""fchmodat2, setxattrat, removexattrat; file_setattr and io_uring, for which everybody has another way."""
_CALLS = {
    "x86_64": (
        0xC000003E,
        (90, 91, 268, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),
        76,  # truncate
        16,  # ioctl
    ),
    "aarch64": (0xC00000B7, (52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16), 45, 29),
}
"""chmod, chown, utime, setxattr, removexattr and their relatives, by processor."""
_SET_FLAGS = (0x40086602, 0x401C5820)
"""ioctl requests that change attributes of files."""


def check() -> None:
    """Raise `NotPossible` where this kernel cannot forbid enough."""
    if not kernel.landlock_version():
        raise NotPossible("this kernel has no Landlock")
    if platform.machine() not in _CALLS:
        raise NotPossible(f"system calls of {platform.machine()} are not known here")


def forbid_writes(folders: Sequence[str]) -> None:
    """From now on this process and all that it starts can write below these folders only, and into devices."""
    version = kernel.landlock_version()
    handled = _WRITE_FILE | _REMOVE_AND_MAKE | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    into = handled & (_WRITE_FILE | _TRUNCATE)
    devices = [f"/dev/{name}" for name in os.listdir("/dev") if name in DEVICES or name.startswith("nvidia")]
    allowed = [(folder, handled) for folder in (*folders, SHARED_MEMORY)]
    kernel.landlock(handled, _SIGNALS if version >= 6 else 0, [*allowed, *((device, into) for device in devices)])


def forbid_changes_of_metadata() -> None:
    """From now on permissions, owners, times and attributes stay as they are; nobody is told."""
    architecture, numbers, truncate, ioctl = _CALLS[platform.machine()]
    answers = {**dict.fromkeys(numbers, 0), **_UNIFORM}
    if kernel.landlock_version() < 3:
        answers[truncate] = _EACCES
    kernel.filter_calls(architecture, answers.items(), ioctl, _SET_FLAGS)
