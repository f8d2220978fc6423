"""Keeps what a trial writes on its stage: also what it names by absolute paths, or reaches through links.

The functions of Python that write get another path. What gets past them (functions that somebody kept a
reference to, databases) is seen by an audit hook: on the stage, links are made into copies before they are written;
anywhere else, writing is an error of the program, and never a change to what is the user's.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from unstuck.capture.trial.isolation.inputs import Inputs, Ours, put
from unstuck.capture.trial.isolation.stage import Stage

FREE = ("/dev/", "/proc/", "/sys/")
"""Nothing written there stays."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
ONE, TWO = ("path",), ("src", "dst")
ENTRIES = {"mkdir": ONE, "rmdir": ONE, "remove": ONE, "unlink": ONE, "mkfifo": ONE, "rename": TWO, "replace": TWO}
"""Functions of `os` that change a folder, and their arguments that name what is in it."""
FILES = ("chdir", "truncate", "chmod", "chown", "utime", "setxattr", "removexattr")
"""Functions of `os` that change what a path leads to, or what relative paths lead to."""
NOT_PATHS = ("", ":memory:")
"""Databases that are not files."""


class Outputs:
    """Puts itself around the functions through which Python writes. For a process that ends with the trial."""

    def __init__(self, stage: Stage, folder: str) -> None:
        self._stage = stage
        own = os.path.realpath(folder) + os.sep  # where the record lies, and what the experiment wants to know
        self._free = (own, *FREE, os.path.realpath(tempfile.gettempdir()) + os.sep)  # which is the trial's own
        self._ours = Ours()
        self._inputs = Inputs(stage, self._ours)
        self.elsewhere: list[str] = []
        """Paths outside of the working directory that the program wanted to write."""

    def redirect(self) -> None:
        """From now on, write on the stage only."""
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self._inputs.redirect()
        builtins.open = io.open = self._opening(builtins.open)
        put(os, "open", self._low_opening(os.open))
        for name, arguments in ENTRIES.items():
            self._change(os, name, dict.fromkeys(arguments, self.entry))
        for name in FILES:
            self._change(os, name, {"path": self.place})
        self._change(os, "link", {"src": self.place, "dst": self.entry})
        self._change(os, "symlink", {"src": self._pointed_to, "dst": self.entry})
        self._remove_trees()
        self._redirect_libraries()
        sys.addaudithook(self._audit)

    def place(self, path: Any, *, keep: bool = True) -> Any:
        """The path to write in place of another one."""
        return self._moved(path, functools.partial(self._stage.make_writable, keep=keep), os.path.realpath)

    def entry(self, path: Any) -> Any:
        """The path to remove or rename in place of another one; of a link, the link itself."""
        return self._moved(path, self._stage.make_removable, _real_entry)

    def _moved(self, path: Any, make: Callable[[str], str], real: Callable[[str], str]) -> Any:
        if not isinstance(path, str | bytes | os.PathLike) or self._ours.depth:
            return path
        with self._ours:
            whole = os.path.join(os.getcwd(), os.fsdecode(path))
            on_stage = self._stage.holds(os.path.abspath(whole))
            if not on_stage:
                whole = real(whole)
                if whole.startswith(self._free) and not self._stage.holds(whole):
                    return path
                self._note(whole)
            copy = make(whole)
            if on_stage and ".." not in whole:
                return path  # it leads there now, and the program reads the name it has given
            return os.fsencode(copy) if isinstance(path, bytes) else copy

    def _note(self, whole: str) -> None:
        """Remember what is written outside of the working directory."""
        self._inputs.written.add(whole)
        shown = os.fsencode(whole).decode(errors="replace")
        if shown not in self.elsewhere and not self._stage.is_copied(whole):
            self.elsewhere.append(shown)

    def _pointed_to(self, path: Any) -> Any:
        """What a link leads to: what is on the stage, if there is such a thing."""
        if self._ours.depth or not isinstance(path, str | bytes | os.PathLike) or not os.path.isabs(path):
            return path
        whole = os.fsdecode(path)
        if self._stage.holds(whole) or whole.startswith(self._free):
            return path
        return os.fsencode(self._stage.root + whole) if isinstance(path, bytes) else self._stage.root + whole

    def _opening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def open_on_stage(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(mode, str) and set(mode) & set("wax+"):
                file = self.place(file, keep="w" not in mode)
            else:
                file = self._inputs.seen(file)
            return original(file, mode, *args, **kwargs)

        return open_on_stage

    def _low_opening(self, original: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(original)
        def open_on_stage(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if kwargs.get("dir_fd") is None:
                path = self.place(path) if flags & WRITING else self._inputs.seen(path)
            return original(path, flags, *args, **kwargs)

        return open_on_stage

    def _change(self, owner: Any, name: str, places: dict[str, Callable[[Any], Any]]) -> None:
        """Put another path in the place of each of these arguments, the first ones of the function."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def change_on_stage(*args: Any, **kwargs: Any) -> Any:
            if not any(kwargs.get(fd) is not None for fd in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
                given = {**dict(zip(places, args, strict=False)), **kwargs}
                moved = {key: place(given[key]) for key, place in places.items() if key in given}
                args = (*(moved.pop(key) for key in list(moved)[: len(args)]), *args[len(places) :])
                kwargs.update(moved)
            return original(*args, **kwargs)

        put(owner, name, change_on_stage)

    def _remove_trees(self) -> None:
        original = shutil.rmtree

        @functools.wraps(original)
        def rmtree_on_stage(path: Any, *args: Any, **kwargs: Any) -> None:
            path = self.entry(path)
            with self._ours:  # links in there are removed, whatever they stand for
                original(path, *args, **kwargs)

        put(shutil, "rmtree", rmtree_on_stage)

    def _redirect_libraries(self) -> None:
        """Those that open their files in C."""
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            self._save(torch, "save")
            torch.serialization.save = torch.save
            self._save(torch.jit, "save")
        with contextlib.suppress(ImportError):  # not every Python has it
            import sqlite3

            self._change(sqlite3, "connect", {"database": self._database})

    def _save(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def save_on_stage(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(obj, self.place(f, keep=False), *args, **kwargs)

        put(owner, name, save_on_stage)

    def _database(self, path: Any) -> Any:
        if path in NOT_PATHS or (isinstance(path, str) and path.startswith("file:")):
            return path
        return self.place(path)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Called by Python before everything that it does to files."""
        check = _CHECKS.get(event)
        if check is not None and not self._ours.depth:
            for path, whole_file in check(args):
                self._check(path, self.place if whole_file else self.entry)

    def _check(self, path: Any, placed: Callable[[Any], Any]) -> None:
        moved = placed(path)
        if moved is not path and not self._stage.holds(os.path.abspath(os.fsdecode(path))):
            raise PermissionError(f"unstuck lets nothing but the copy of your files be written, and not {path!r}")


Checked = list[tuple[Any, bool]]


def _opened(args: tuple[Any, ...]) -> Checked:
    path, _, flags = args
    return [(path, True)] if isinstance(flags, int) and flags & WRITING else []


def _connected(args: tuple[Any, ...]) -> Checked:
    database = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
    if database in NOT_PATHS or "mode=ro" in database or "mode=memory" in database:
        return []
    return [(database.removeprefix("file:").split("?")[0], True)]


def _named(position: int, folder: int, whole_file: bool) -> Callable[[tuple[Any, ...]], Checked]:
    """A path at a position, and at another one the folder that it is relative to, or -1."""
    return lambda args: [(args[position], whole_file)] if folder >= len(args) or args[folder] == -1 else []


def _renamed(args: tuple[Any, ...]) -> Checked:
    return [(path, False) for path, folder in zip(args[:2], args[2:4], strict=True) if folder == -1]


_CHECKS: dict[str, Callable[[tuple[Any, ...]], Checked]] = {
    "open": _opened,
    "sqlite3.connect": _connected,
    "os.mkdir": _named(0, 2, False),
    "os.rmdir": _named(0, 1, False),
    "os.remove": _named(0, 1, False),
    "os.rename": _renamed,
    "os.link": lambda args: [(args[0], True), *_named(1, 3, False)(args)],
    "os.symlink": _named(1, 2, False),
    "os.truncate": _named(0, 9, True),
    "os.chmod": _named(0, 2, True),
    "os.chown": _named(0, 3, True),
    "os.utime": _named(0, 3, True),
    "os.setxattr": _named(0, 9, True),
    "os.removexattr": _named(0, 9, True),
}


def _real_entry(path: str) -> str:
    """Links on the way are followed, but not the last one."""
    folder, name = os.path.split(path.rstrip(os.sep))
    return os.path.realpath(path) if name in ("", ".", "..") else os.path.join(os.path.realpath(folder), name)
