"""Which runs a living process uses: a lock that the kernel releases with the process, however that ends."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from unstuck.record.store import RECORD_NAME

BEGINNING = 60.0
"""Seconds in which a new run may have its folder and not yet a record in it."""


def lock(descriptor: int) -> None:
    """Mark an open file or folder as in use until the last process that has it open ends. Not every disk can."""
    with contextlib.suppress(OSError, ImportError):
        import fcntl

        for _ in range(100):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:  # somebody asks this very moment whether it is locked
                time.sleep(0.01)


def hold(folder: Path) -> int:
    """Mark a run as in use until all processes are gone that have the descriptor which this returns. It lasts for as
    long as this process if nobody closes it."""
    opened = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    lock(opened)
    return opened


def is_in_use(folder: Path) -> bool:
    """Does a living process hold the run, or write to its record?"""
    return is_locked(folder) or is_locked(folder / RECORD_NAME) or _is_beginning(folder)


def is_locked(path: Path) -> bool:
    """Does a living process hold this file or folder?"""
    try:
        import fcntl
    except ImportError:
        return False  # a file that is open cannot be removed there
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _is_beginning(folder: Path) -> bool:
    """Was it made a moment ago, and is still empty?"""
    try:
        return not os.listdir(folder) and 0 <= time.time() - folder.lstat().st_mtime < BEGINNING
    except OSError:
        return False
