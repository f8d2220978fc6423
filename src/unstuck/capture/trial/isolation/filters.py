"""System calls that a trial is refused, by the number they have on this processor.

The kernel's own ways of isolation leave these out: permissions and times under Landlock, keyrings, limits of other
processes. What is answered with 0 is not done, without an error.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

from unstuck.capture.trial.isolation import kernel

_EPERM, _ENOSYS = 1, 38
_UNIFORM = {452: 0, 463: 0, 466: 0, 469: _ENOSYS, 425: _ENOSYS}
"""fchmodat2, setxattrat, removexattrat; file_setattr and io_uring, for which everybody has another way."""
_FILE_IOCTLS = (0x40086602, 0x401C5820, 0x40087602, 0x40086604)
"""Attributes and versions of files; the last is ext4's own number for a version."""
_SUBVOLUME_IOCTLS = (0x50009401, 0x5000940E, 0x5000940F, 0x50009417, 0x50009418, 0x4008941A, 0x5000943F)
"""btrfs makes and removes subvolumes without asking Landlock."""
_TERMINAL_IOCTLS = (0x5412, 0x541C, 0x5414, 0x5402, 0x5403, 0x5404, 0x402C542B, 0x402C542C, 0x402C542D)
"""Typing into a terminal, its size and its settings."""


class _Calls(NamedTuple):
    """Numbers of one processor."""

    architecture: int
    metadata: tuple[int, ...]
    """chmod, chown, utime, setxattr, removexattr and their relatives."""
    keyrings: tuple[int, ...]
    """add_key, request_key, keyctl."""
    of_others: tuple[int, ...]
    """prlimit64, sched_setparam and sched_setscheduler, whose first argument is a process; 0 is the caller."""
    priorities: tuple[int, ...]
    """setpriority, ioprio_set, sched_setattr and sched_setaffinity, which may name any process of the user's. A trial
    does without: scripts call them, with their own number, to be polite or fast."""
    queues: tuple[int, ...]
    """mq_open and mq_unlink."""
    ioctl: int


_KNOWN = {
    "x86_64": _Calls(
        0xC000003E,
        (90, 91, 268, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),
        (248, 249, 250),
        (302, 142, 144),
        (141, 251, 314, 203),
        (240, 241),
        16,
    ),
    "aarch64": _Calls(
        0xC00000B7,
        (52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16),
        (217, 218, 219),
        (261, 118, 119),
        (140, 30, 274, 122),
        (180, 181),
        29,
    ),
}


def are_known() -> bool:
    """Are the numbers of this processor known?"""
    return platform.machine() in _KNOWN


def forbid_keyrings() -> None:
    """No keys are read or changed: they belong to the whole session of the user."""
    if are_known():
        calls = _KNOWN[platform.machine()]
        kernel.filter_calls(calls.architecture, dict.fromkeys(calls.keyrings, _ENOSYS))


def forbid_what_landlock_allows() -> None:
    """Permissions, owners, times and attributes stay as they are; terminals, keys, queues and other processes too."""
    calls = _KNOWN[platform.machine()]
    ignored, missing = (*calls.metadata, *calls.priorities), (*calls.keyrings, *calls.queues)
    answers = {**dict.fromkeys(ignored, 0), **dict.fromkeys(missing, _ENOSYS), **_UNIFORM}
    requests = (*_FILE_IOCTLS, *_SUBVOLUME_IOCTLS, *_TERMINAL_IOCTLS)
    kernel.filter_calls(calls.architecture, answers, calls.of_others, calls.ioctl, requests)
