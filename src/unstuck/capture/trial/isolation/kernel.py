"""The calls of the Linux kernel that Python has no function for. Each raises OSError, as those of `os` do.

Numbers of system calls above 400 are the same on every processor.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOUNT_ATTR_RDONLY = 1
_OPEN_TREE, _MOUNT_SETATTR = 428, 442

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITIES_V3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Leave the namespaces of these kinds for new ones. `os.unshare` is there from Python 3.12 on."""
    _checked(_libc.unshare(flags))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or bind a folder or file to another place."""
    words = [os.fsencode(word) if word else None for word in (source, target, kind)]
    _checked(
        _libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) if options else None), f"mount on {target}"
    )


def unmount(target: str) -> None:
    """Take a mount and all below it out of sight; what is open stays open."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def make_read_only(path: str) -> None:
    """This mount and all below it can be read only."""
    _set_attributes(path, _Attributes(set=_MOUNT_ATTR_RDONLY), _AT_RECURSIVE)


def make_writable(path: str) -> None:
    """This mount can be written again, but none below it."""
    _set_attributes(path, _Attributes(clear=_MOUNT_ATTR_RDONLY), 0)


def _set_attributes(path: str, attributes: _Attributes, flags: int) -> None:
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    arguments = (_AT_FDCWD, os.fsencode(path), flags, ctypes.byref(attributes), size)
    _checked(_libc.syscall(_MOUNT_SETATTR, *arguments), f"change the mount at {path}")


def detached_mount(path: str) -> int:
    """A descriptor of a folder from which no `..` leads out."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _checked(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags)), f"open {path}")


def die_with_parent(signal: int) -> None:
    """Have the kernel send this signal when the thread that forked us ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal), 0, 0, 0))


def forbid_new_privileges() -> None:
    """No program that we start, setuid or not, can do more than we can."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilityData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def keep_capabilities(numbers: Iterable[int]) -> None:
    """Give up every capability but these, for us and for all that we start."""
    wanted = set(numbers)
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for number in range(last + 1):
        if number not in wanted:
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # refused to those who have none to give up
    bits = sum(1 << number for number in wanted if number <= last)
    data = (_CapabilityData * 2)()
    for index, half in enumerate((bits & 0xFFFFFFFF, bits >> 32)):
        data[index].effective = data[index].permitted = half
    header = _CapabilityHeader(_CAPABILITIES_V3, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(data)))


def _checked(result: int, what: str = "") -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: {what}" if what else os.strerror(number))
    return result


# -- Landlock ----------------------------------------------------------------------------------------------------------

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION = 1
_LANDLOCK_BENEATH = 1


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def landlock_version() -> int:
    """What this kernel's Landlock can do, as a number from 1 on; 0 if there is none."""
    version: int = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    return max(0, version)


def landlock(handled: int, scoped: int, allowed: Iterable[tuple[str, int]]) -> None:
    """Forbid what is `handled` to this process and all that it starts, but for what is allowed below each path."""
    rules = _Ruleset(handled, 0, scoped)
    version = landlock_version()
    size = 24 if version >= 6 else 16 if version >= 4 else 8  # of the part of the structure that it knows
    made = _libc.syscall(_LANDLOCK_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    ruleset = _checked(made, "make a Landlock ruleset")
    try:
        for path, rights in allowed:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                rule = _Beneath(rights, opened)
                added = _libc.syscall(_LANDLOCK_ADD, ruleset, _LANDLOCK_BENEATH, ctypes.byref(rule), 0)
                _checked(added, f"allow writing below {path}")
            finally:
                os.close(opened)
        forbid_new_privileges()
        _checked(_libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "enter a Landlock domain")
    finally:
        os.close(ruleset)


# -- seccomp -----------------------------------------------------------------------------------------------------------

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_RETURN_ALLOW, _RETURN_ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_X32 = 0x40000000
"""Numbers of an older set of system calls that begin here would pass every comparison."""


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


def filter_calls(
    architecture: int, answers: Mapping[int, int], own: Iterable[int] = (), ioctl: int = -1, ioctls: Iterable[int] = ()
) -> None:
    """Answer these system calls with an error number, and not carry them out; 0 pretends that all went well.

    `own` calls are permitted with 0 as their first argument; `ioctls` are requests of the call `ioctl` that are not
    permitted. Holds for all that we start.
    """
    not_permitted = _RETURN_ERRNO | 1
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, not_permitted),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, not_permitted),
    ]
    for number, error in answers.items():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _RETURN_ERRNO | error)]
    for number in own:
        steps += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, 0)]
        steps += [(_RETURN, 0, 0, not_permitted), (_RETURN, 0, 0, _RETURN_ALLOW)]
    requests = [step for request in ioctls for step in ((_EQUAL, 0, 1, request), (_RETURN, 0, 0, not_permitted))]
    if requests:
        steps += [(_EQUAL, 0, len(requests) + 1, ioctl), (_LOAD, 0, 0, _SECOND_ARGUMENT), *requests]
    steps.append((_RETURN, 0, 0, _RETURN_ALLOW))
    instructions = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), instructions)
    forbid_new_privileges()
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "filter system calls")


# -- processes ---------------------------------------------------------------------------------------------------------

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """What our children start and leave behind becomes our child."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
