"""Reading files whose names come from elsewhere: a pipe would be waited for, a device may have no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

LARGEST_SCRIPT = 16 * 2**20
"""Bytes of a script, or of what else is read whole."""

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class NotRegular(OSError):
    """What lies there is not a file; `strerror` says what it is, as in `a pipe`."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, be it behind a link, to be read. Raises OSError for everything else."""
    try:
        _check(path, os.stat(path))
        # Somebody may put a pipe there in between; opened like this it is not waited for.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a zero byte in the name
        raise FileNotFoundError(0, str(error), os.fspath(path)) from None
    try:
        _check(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a regular file. Raises OSError for everything else, and for one of more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(0, f"it has more than {most:,} bytes", str(Path(path)))
    return content


def _check(path: str | os.PathLike[str], found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotRegular(0, _KINDS.get(stat.S_IFMT(found.st_mode), "a device"), os.fspath(path))
