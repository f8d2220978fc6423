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
_FILE_IOCTLS = (0x40086602, 0x401C5820, 0x40087602)
"""Attributes and versions of files."""
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
    ioctl: int


_KNOWN = {
    "x86_64": _Calls(
        0xC000003E,
        (90, 91, 268, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),
        (248, 249, 250),
        (302, 142, 144),
        16,
    ),
    "aarch64": _Calls(0xC00000B7, (52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16), (217, 218, 219), (261, 118, 119), 29),
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
    """Permissions, owners, times and attributes stay as they are, terminals, keys and other processes too."""
    calls = _KNOWN[platform.machine()]
    answers = {**dict.fromkeys(calls.metadata, 0), **dict.fromkeys(calls.keyrings, _ENOSYS), **_UNIFORM}
    kernel.filter_calls(calls.architecture, answers, calls.of_others, calls.ioctl, (*_FILE_IOCTLS, *_TERMINAL_IOCTLS))
