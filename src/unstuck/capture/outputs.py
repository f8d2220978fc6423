"""Keeps what a trial writes on its stage: also what it names by absolute paths, or reaches through links."""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from unstuck.capture.stage import Stage

FREE = ("/dev/", "/proc/", "/sys/")
"""Nothing is kept there."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Outputs:
    """Puts itself around the functions through which Python writes. For a process that ends with the trial."""

    def __init__(self, stage: Stage, folder: str) -> None:
        self._stage = stage
        temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
        inside_temporary = stage.home.startswith(temporary)
        own = os.path.realpath(folder) + os.sep  # where the record lies, and what the experiment wants to know
        # A socket between a loader and its workers cannot be put anywhere else.
        scratch = temporary + "pymp-" if inside_temporary else temporary
        self._free = (own, *FREE, scratch, *_caches())
        self.elsewhere: list[str] = []
        """Paths outside of the working directory that the program wanted to write."""

    def redirect(self) -> None:
        """From now on, write on the stage only."""
        opened = self._opening(builtins.open)
        builtins.open = io.open = opened
        os.open = self._low_opening(os.open)
        for owner, name in ((os, "mkdir"), (os, "rmdir"), (shutil, "rmtree")):
            setattr(owner, name, self._changing(getattr(owner, name), self.place))
        for name in ("remove", "unlink", "rename", "replace"):
            setattr(os, name, self._changing(getattr(os, name), self.entry))
        torch: Any = sys.modules.get("torch")
        if torch is not None:  # it opens its files in C++
            torch.save = torch.serialization.save = self._saving(torch.save)

    def place(self, path: Any, *, keep: bool = True) -> Any:
        """The path to write in place of another one."""
        whole = self._kept(path)
        return path if whole is None else self._stage.make_writable(whole, keep=keep)

    def entry(self, path: Any) -> Any:
        """The path to remove or rename in place of another one; of a link, the link itself."""
        whole = self._kept(path)
        return path if whole is None else self._stage.make_removable(whole)

    def written(self, path: Any) -> Any:
        """The path to read in place of another one: what the trial wrote itself, if it did."""
        if not self.elsewhere or not isinstance(path, str | os.PathLike):
            return path
        whole = os.path.abspath(os.fspath(path))
        copy = self._stage.copy_of(whole)
        return copy if whole in self.elsewhere and os.path.exists(copy) else path

    def _kept(self, path: Any) -> str | None:
        """The absolute path, if nothing but the stage may be written in its place."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        whole = os.path.abspath(os.fsdecode(path))
        if not self._stage.holds(whole):
            if whole.startswith(self._free):
                return None
            if whole not in self.elsewhere:
                self.elsewhere.append(whole)
        return whole

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def open_on_stage(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(mode, str) and set(mode) & set("wax+"):
                file = self.place(file, keep="w" not in mode)
            else:
                file = self.written(file)
            return original(file, mode, *args, **kwargs)

        return open_on_stage

    def _low_opening(self, original: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(original)
        def open_on_stage(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & WRITING and kwargs.get("dir_fd") is None:
                path = self.place(path)
            return original(path, flags, *args, **kwargs)

        return open_on_stage

    def _changing(self, original: Callable[..., Any], placed: Callable[[Any], Any]) -> Callable[..., Any]:
        paths = 2 if original.__name__ in ("rename", "replace") else 1

        @functools.wraps(original)
        def change_on_stage(*args: Any, **kwargs: Any) -> Any:
            if not any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
                args = (*(placed(path) for path in args[:paths]), *args[paths:])
            return original(*args, **kwargs)

        return change_on_stage

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save_on_stage(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(obj, self.place(f, keep=False), *args, **kwargs)

        return save_on_stage


def _caches() -> tuple[str, ...]:
    """Where downloads are kept: to fetch them again for every trial would help nobody."""
    named = [os.environ.get(name, "") for name in ("TORCH_HOME", "HF_HOME", "XDG_CACHE_HOME", "HF_DATASETS_CACHE")]
    folders = [*named, os.path.expanduser("~/.cache")]
    return tuple(os.path.realpath(folder) + os.sep for folder in folders if folder)
