"""Lets a trial read what it has written itself, and see no difference between its stage and the real place."""

from __future__ import annotations

import errno
import functools
import glob
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from unstuck.capture.trial.isolation.stage import Stage

LOOKING = ("listdir", "access", "getxattr", "listxattr", "statvfs")
"""Functions of `os` that follow links."""


class Ours(threading.local):
    """A `with` block in which files are what they are: the program's thread is doing something for us."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class Inputs:
    """Puts itself around the functions through which Python looks at files. For us they work as before."""

    def __init__(self, stage: Stage, ours: Ours) -> None:
        self._stage = stage
        self._ours = ours
        self.written: set[str] = set()
        """What the program wanted to write by absolute paths outside of the stage."""

    def redirect(self) -> None:
        """From now on, show the stage where the program asks for what it is a copy of."""
        lstat = self._link_status(os.lstat, os.stat)
        for name in LOOKING:
            if hasattr(os, name):
                put(os, name, self._looking(getattr(os, name)))
        put(os, "stat", self._status(os.stat, lstat))
        put(os, "lstat", lstat)
        put(os, "readlink", self._reading_link(os.readlink))
        put(os, "scandir", self._scanning(os.scandir))
        globber = getattr(glob, "_StringGlobber", None)
        if hasattr(globber, "scandir"):  # Python 3.13 keeps it there, for `Path.glob`
            put(globber, "scandir", staticmethod(os.scandir))

    def seen(self, path: Any) -> Any:
        """The path to read in place of another one: its copy, if there is one or the program has removed it."""
        if self._ours.depth or not isinstance(path, str | bytes | os.PathLike) or not os.path.isabs(path):
            return path
        whole = os.fsdecode(path)
        if self._stage.holds(whole):
            return path
        with self._ours:
            real = os.path.join(_real_folder(os.path.dirname(whole)), os.path.basename(whole))
            copy = self._stage.root + real
            if _same(copy, real) or not (os.path.lexists(copy) or self._may_be_gone(real)):
                return path
            return os.fsencode(copy) if isinstance(path, bytes) else copy

    def _may_be_gone(self, path: str) -> bool:
        """What is not on the stage: would it be, had the program not removed it?"""
        return self._stage.is_copied(path) or any(
            path == gone or path.startswith(gone + os.sep) for gone in self.written
        )

    def _looking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def look_at_stage(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            return original(path if kwargs.get("dir_fd") is not None else self.seen(path), *args, **kwargs)

        return look_at_stage

    def _status(self, original: Callable[..., Any], lstat: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def stat_on_stage(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
            if dir_fd is None:
                return original(self.seen(path)) if follow_symlinks else lstat(path)
            return original(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

        return stat_on_stage

    def _link_status(self, original: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def lstat_on_stage(path: Any, *args: Any, **kwargs: Any) -> Any:
            if self._ours.depth or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            path = self.seen(path)
            return follow(path) if self._stands_for_another(path) else original(path, *args, **kwargs)

        return lstat_on_stage

    def _reading_link(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def readlink_on_stage(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None and self._stands_for_another(path):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            return original(path, *args, **kwargs)

        return readlink_on_stage

    def _stands_for_another(self, path: Any) -> bool:
        """Is this one of the stage's links, which the program should take for what it leads to?"""
        if self._ours.depth or not isinstance(path, str | bytes | os.PathLike):
            return False
        with self._ours:
            whole = os.path.abspath(os.fsdecode(path))
            return self._stage.holds(whole) and self._stage.leads_out(whole)

    def _scanning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scandir_on_stage(path: Any = ".") -> Any:
            if self._ours.depth or isinstance(path, int):
                return original(path)
            return _Entries(original(self.seen(path)), self._stands_for_another)

        return scandir_on_stage


class _Entries:
    """What `os.scandir` returns, with the links of the stage as what they lead to."""

    def __init__(self, entries: Any, stands_for_another: Callable[[Any], bool]) -> None:
        self._entries = entries
        self._stands_for_another = stands_for_another

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        entry = next(self._entries)
        return _Entry(entry) if entry.is_symlink() and self._stands_for_another(entry.path) else entry

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()

    def close(self) -> None:
        self._entries.close()


class _Entry:
    """An entry of a folder that is a link, and should not be taken for one."""

    def __init__(self, entry: os.DirEntry[Any]) -> None:
        self._entry = entry
        self.name = entry.name
        self.path = entry.path

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._entry.stat().st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_file()

    def is_symlink(self) -> bool:
        return False

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._entry.stat()


def put(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Set a function of a module, and let `os` know that the new one takes the same arguments."""
    original = getattr(owner, name)
    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in able:
            able.add(function)
    setattr(owner, name, function)


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def _same(copy: str, path: str) -> bool:
    """Do both lead to the same thing?"""
    try:
        return os.path.samefile(copy, path)
    except OSError:
        return False
