"""A stage for a trial: a copy of the working directory in which the program may write whatever it likes.

Code and small files are copied, the rest is linked. The directories above are there too, as links, so that `../data`
leads where it always did. What the program opens for writing through a link is copied first.
"""

from __future__ import annotations

import os
import shutil
from collections import deque

LARGEST_COPY = 2**20
"""Bytes of a file that is copied and not linked."""
COPIES = 64 * 2**20
"""Bytes that are copied in all."""
ENTRIES = 20_000
"""Files and folders that are looked at in all; folders beyond are linked whole."""
CODE = (".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
LINKED = frozenset({".git", ".hg", "node_modules", "site-packages", ".mypy_cache", ".ruff_cache", ".tox"})
LEFT_OUT = frozenset({".unstuck", "__pycache__"})


class Stage:
    """The copy, below `root`: what was `/home/me/project` is `root/home/me/project` there."""

    def __init__(self, root: str, home: str) -> None:
        self.root = os.path.realpath(root)
        self.home = os.path.realpath(home)
        self._copied = 0
        self._entries = 0

    @property
    def here(self) -> str:
        """The copy of the working directory."""
        return self.root + self.home

    def build(self, *more: str) -> None:
        """Make the copy, and that of other directories the program lives in."""
        homes = [self.home, *(os.path.realpath(path) for path in more)]
        for home in homes:
            if not os.path.isdir(self.root + home) or os.path.islink(self.root + home):
                self._ancestors(home)
                self._copy(home)

    def remove(self) -> None:
        """Take the copy away. Links are removed, never what they lead to."""
        shutil.rmtree(self.root, ignore_errors=True)

    def copy_of(self, path: str) -> str:
        """Where a path lies on the stage; a path that is there already stays."""
        whole = os.path.abspath(path)
        return whole if self.holds(whole) else self.root + whole

    def holds(self, path: str) -> bool:
        """Is this absolute path on the stage?"""
        return path == self.root or path.startswith(self.root + os.sep)

    def original_of(self, path: str) -> str:
        """What a path on the stage is a copy of."""
        return path[len(self.root) :] or os.sep if self.holds(path) else path

    def make_writable(self, path: str, *, keep: bool) -> str:
        """Where to write in place of `path`: no link is left on the way. `keep`: with what the file holds now."""
        copy = self.copy_of(path)
        self._own_folder(os.path.dirname(copy))
        if os.path.islink(copy):
            target = os.path.realpath(copy)
            os.unlink(copy)
            if os.path.isdir(target):
                self._list(target, copy)
            elif keep and os.path.isfile(target):
                shutil.copy2(target, copy)
        return copy

    def make_removable(self, path: str) -> str:
        """What to remove or rename in place of `path`: a file or link in a folder of the stage's own."""
        copy = self.copy_of(path)
        self._own_folder(os.path.dirname(copy))
        return copy

    def _own_folder(self, folder: str) -> None:
        """Make links to folders, on the way to this one, into folders of the stage's own."""
        missing: list[str] = []
        while self.holds(folder) and folder != self.root and (os.path.islink(folder) or not os.path.isdir(folder)):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            original = self.original_of(folder)
            if os.path.islink(folder):
                original = os.path.realpath(folder)
                os.unlink(folder)
            if os.path.isdir(original) and not os.path.isdir(folder):
                self._list(original, folder)
            # A folder that the program has not made either: its own mkdir or its own error.

    def _ancestors(self, home: str) -> None:
        path = home
        above: list[tuple[str, str]] = []
        while path != os.path.dirname(path):
            above.append((os.path.dirname(path), path))
            path = os.path.dirname(path)
        os.makedirs(self.root, exist_ok=True)
        for folder, child in reversed(above):
            copy = self.root + (folder if folder != os.sep else "")
            if os.path.islink(copy) or not os.path.isdir(copy):
                self._own_folder(copy)
                os.makedirs(copy, exist_ok=True)
            self._link_all(folder, copy, but=os.path.basename(child))
        if os.path.islink(self.root + home):
            os.unlink(self.root + home)

    def _link_all(self, folder: str, copy: str, but: str = "") -> None:
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names[:ENTRIES]:
            if name != but:
                _link(os.path.join(folder, name), os.path.join(copy, name))

    def _list(self, folder: str, copy: str) -> None:
        """A folder of the stage's own with links to everything in the original."""
        os.makedirs(copy, exist_ok=True)
        self._link_all(folder, copy)

    def _copy(self, home: str) -> None:
        """Breadth first, so that what lies near is copied if not everything can be."""
        todo = deque([home])
        while todo:
            folder = todo.popleft()
            os.makedirs(self.root + folder, exist_ok=True)
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                self._entries += 1
                if self._copy_entry(entry):
                    todo.append(entry.path)

    def _copy_entry(self, entry: os.DirEntry[str]) -> bool:
        """Copy or link one entry; True if it is a folder to go into."""
        copy = self.root + entry.path
        if entry.name in LEFT_OUT or os.path.lexists(copy):
            return False
        try:
            if entry.is_dir(follow_symlinks=False):
                deep = entry.name not in LINKED and self._entries < ENTRIES and not _is_environment(entry.path)
                return (deep and not self.holds(entry.path)) or _link(entry.path, copy)
            if entry.is_file() and self._is_small(entry):
                shutil.copy2(os.path.realpath(entry.path), copy)
                return False
        except OSError:
            pass
        return _link(entry.path, copy)

    def _is_small(self, entry: os.DirEntry[str]) -> bool:
        size = entry.stat().st_size
        if size > LARGEST_COPY or (self._copied + size > COPIES and not entry.name.endswith(CODE)):
            return False
        self._copied += size
        return True


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _link(path: str, copy: str) -> bool:
    """Link, if it can be; False, so that nobody goes into it."""
    try:
        if not os.path.lexists(copy):
            os.symlink(os.path.realpath(path), copy)
    except OSError:
        pass
    return False
