"""A stage for a trial: a copy of the working directory in which the program may write whatever it likes.

Code and small files are copied, the rest is linked. The directories above are there too, as links, so that `../data`
leads where it always did. There are two kinds of links: those that lead out of the stage stand for what is not copied
yet, and are made into copies before anything is written through them; the user's own lead to places on the stage.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice

LARGEST_COPY = 2**20
"""Bytes of a file that is copied and not linked."""
COPIES = 64 * 2**20
"""Bytes that are copied in all."""
COPIES_WITHOUT_KERNEL = 2 * 2**30
"""The same where the kernel does not keep anybody from writing through a link."""
COPIED_FILES = 1_000
"""Files that are copied in all, code apart."""
ENTRIES = 2_000
"""Files and folders that are looked at below the working directory; folders that are too much are linked whole."""
MOST_LINKS = 40
"""Links on the way to a file, after which the system gives up too."""
CODE = (".py", ".pyi", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini")
LINKED = frozenset({".git", ".hg", "node_modules", "site-packages", ".mypy_cache", ".ruff_cache", ".tox"})
FICLONE = 0x40049409
MAKING = ".unstuck-copy"
"""The name of a copy that is not complete."""
LEFT_OUT = frozenset({".unstuck", "__pycache__"})


class Stage:
    """The copy, below `root`: what was `/home/me/project` is `root/home/me/project` there."""

    def __init__(self, root: str, home: str, *, copy_all: bool = False) -> None:
        """`copy_all`: copy large files too, where nothing else protects what a link leads to."""
        self.root = os.path.realpath(root)
        self._largest_copy, self._copies = (COPIES_WITHOUT_KERNEL,) * 2 if copy_all else (LARGEST_COPY, COPIES)
        self.home = os.path.realpath(home)
        self.homes: list[str] = []
        """The directories that are copied."""
        self._can_clone = True
        self._bytes = 0
        self._files = 0
        self._entries = 0

    @property
    def room(self) -> str:
        """The folder that holds the copy and nothing else."""
        return os.path.dirname(self.root)

    @property
    def here(self) -> str:
        """The copy of the working directory."""
        return self.root + self.home

    def build(self, *more: str) -> None:
        """Make the copy, and that of other directories the program lives in."""
        for home in (self.home, *(os.path.realpath(path) for path in more)):
            if not self.is_copied(home):
                self.homes.append(home)
                self._ancestors(home)
                self._copy(home)

    def copy_of(self, path: str) -> str:
        """Where a path lies on the stage; a path that is there already stays."""
        whole = os.path.abspath(path)
        return whole if self.holds(whole) else self.root + whole

    def holds(self, path: str) -> bool:
        """Is this absolute path on the stage?"""
        return _is_below(path, self.root)

    def is_copied(self, path: str) -> bool:
        """Does this absolute path belong to a directory that is copied, and is it not left out?"""
        return any(
            _is_below(path, home) and LEFT_OUT.isdisjoint(path[len(home) :].split(os.sep)) for home in self.homes
        )

    def original_of(self, path: str) -> str:
        """What a path on the stage is a copy of."""
        return path[len(self.root) :] or os.sep if self.holds(path) else path

    def leads_out(self, path: str) -> bool:
        """Is this a link that stands for something that is not copied?"""
        try:
            return self._is_outside(os.readlink(path))
        except OSError:
            return False

    def make_writable(self, path: str, *, keep: bool) -> str:
        """Where to write in place of `path`, a file of the stage's own. `keep`: with what the file holds now."""
        with self._alone():
            copy = self._own_way(path, follow=True)
            if self.leads_out(copy):
                self._own(copy, keep=keep)
            return copy

    def make_removable(self, path: str) -> str:
        """What to remove or rename in place of `path`: itself, even if it is a link, in a folder of the stage's own."""
        with self._alone():
            copy = self._own_way(path, follow=False)
            if self.leads_out(copy) and os.path.isdir(copy):
                self._own(copy)
            return copy

    def _is_outside(self, target: str) -> bool:
        return os.path.isabs(target) and not self.holds(target)

    def _own_way(self, path: str, *, follow: bool) -> str:
        """Walk there as the system does, and make every folder on the way the stage's own."""
        todo = self._names(path)
        here = self.root
        links = 0
        while todo:
            name = todo.pop()
            if name == "..":
                here = here if here == self.root else os.path.dirname(here)
                continue
            step = os.path.join(here, name)
            target = self._target_of(step) if todo or follow else None
            if target is not None and self._is_outside(target):
                if todo:
                    self._own(step)
            elif target is not None and links < MOST_LINKS:
                links += 1
                todo += self._names(target)
                here = self.root if os.path.isabs(target) else here
                continue
            here = step
        return here

    def _target_of(self, step: str) -> str | None:
        """Where a link leads; None if it is none."""
        try:
            return os.readlink(step)
        except FileNotFoundError:
            folder, original = os.path.dirname(step), self.original_of(step)
            if not os.path.lexists(original) or os.access(self.original_of(folder), os.R_OK):
                return None
            self._link(original, step)  # from a folder that may not be listed
            return original
        except OSError:
            return None

    def _names(self, path: str) -> list[str]:
        """The parts of a path, last one first."""
        return [name for name in self.original_of(path).split(os.sep) if name not in ("", ".")][::-1]

    def _own(self, link: str, *, keep: bool = True) -> None:
        """Put a copy in the place of a link; of a folder, one that links what is in it."""
        target = os.readlink(link)
        made = os.path.join(os.path.dirname(link), MAKING)
        if os.path.isdir(target):
            os.mkdir(made)
            self._link_all(target, made, link)
        elif keep and os.path.isfile(target):
            _copy_file(target, made)
        os.unlink(link)
        if os.path.lexists(made):
            os.rename(made, link)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One process or thread of the program at a time, also one that is forked meanwhile."""
        lock = os.open(self.root + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _ancestors(self, home: str) -> None:
        """Folders of the stage's own from its root to this one."""
        os.makedirs(self.root, exist_ok=True)
        folder = os.sep
        for name in [*home.split(os.sep)[1:], ""]:
            copy = self.root + folder.rstrip(os.sep)
            if self.leads_out(copy):
                os.unlink(copy)
            if not os.path.isdir(copy) or folder == os.sep:
                os.makedirs(copy, exist_ok=True)
            if folder != home:
                self._link_all(folder, copy, copy, but=name)
            folder = os.path.join(folder, name)

    def _link_all(self, folder: str, copy: str, final: str, but: str = "") -> None:
        """Link everything in a folder into its copy, which will have another name in the end."""
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            if name != but and name not in LEFT_OUT:
                self._link(os.path.join(folder, name), os.path.join(copy, name), os.path.join(final, name))

    def _link(self, path: str, copy: str, final: str = "") -> bool:
        """Link, if it can be; False, so that nobody goes into it."""
        with contextlib.suppress(OSError):
            if os.path.lexists(path) and not os.path.lexists(copy):
                os.symlink(self._target(path, final or copy), copy)
        return False

    def _target(self, path: str, final: str) -> str:
        """Where the copy of a path leads. A link of the user's leads to the same place, on the stage."""
        if not os.path.islink(path):
            return path
        target = os.readlink(path)
        if not os.path.isabs(target) and final == self.root + path:
            return target
        whole = os.path.join(os.path.dirname(path), target)
        reached = os.path.exists(self.root + whole) or self.is_copied(whole)
        return self.root + whole if reached or not os.path.exists(path) else os.path.realpath(path)

    def _copy(self, home: str) -> None:
        """Breadth first, so that what lies near is copied if not everything can be."""
        todo = deque([home])
        while todo:
            folder = todo.popleft()
            entries = self._entries_of(folder)
            if entries is None and folder != home and not os.path.lexists(self.root + folder):
                self._link(folder, self.root + folder)
                continue
            os.makedirs(self.root + folder, exist_ok=True)
            todo += [entry.path for entry in entries or () if self._copy_entry(entry)]

    def _entries_of(self, folder: str) -> list[os.DirEntry[str]] | None:
        """What is in a folder; None if that is too much, or if it cannot be read."""
        most = None if folder in self.homes else max(0, ENTRIES - self._entries) + 1
        try:
            with os.scandir(folder) as listed:
                entries = sorted(islice(listed, most), key=lambda entry: entry.name)
        except OSError:
            return None
        if most is not None and len(entries) >= most:
            return None
        self._entries += len(entries) if most is not None else 0
        return entries

    def _copy_entry(self, entry: os.DirEntry[str]) -> bool:
        """Copy or link one entry; True if it is a folder to go into."""
        copy = self.root + entry.path
        if entry.name in LEFT_OUT or self.holds(entry.path):
            return False
        if self.leads_out(copy):
            os.unlink(copy)
        elif os.path.lexists(copy):
            return os.path.isdir(copy) and not os.path.islink(copy) and entry.path not in self.homes
        try:
            if entry.is_dir(follow_symlinks=False):
                linked = entry.name in LINKED or _is_environment(entry.path)
                return self._link(entry.path, copy) if linked else True
            if entry.is_file(follow_symlinks=False):
                if entry.stat().st_size > LARGEST_COPY and self._clone(entry.path, copy):
                    return False
                if self._is_small(entry):
                    _copy_file(entry.path, copy)
                    return False
        except OSError:
            pass
        return self._link(entry.path, copy)

    def _clone(self, path: str, copy: str) -> bool:
        """Copy without copying the bytes, as some file systems can; False if this one cannot."""
        if self._can_clone:
            try:
                _clone_file(path, copy)
            except OSError:
                self._can_clone = False
        return self._can_clone

    def _is_small(self, entry: os.DirEntry[str]) -> bool:
        size = entry.stat().st_size
        full = self._bytes + size > self._copies or self._files >= COPIED_FILES
        if size > self._largest_copy or (full and not entry.name.endswith(CODE)):
            return False
        self._bytes += size
        self._files += 1
        return True


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_environment(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _copy_file(path: str, copy: str) -> None:
    """With its times and permissions. Nothing is left of a copy that fails."""
    try:
        shutil.copy2(path, copy)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(copy)
        raise


def _clone_file(path: str, copy: str) -> None:
    """A file of its own that shares the bytes of another until one of them is written."""
    if sys.platform == "darwin":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).clonefile(os.fsencode(path), os.fsencode(copy), 0):
            raise OSError(ctypes.get_errno(), "no clone")
        return
    with open(path, "rb") as source, open(copy, "xb") as target:
        try:
            fcntl.ioctl(target, FICLONE, source.fileno())
        except OSError:
            os.unlink(copy)
            raise
    shutil.copystat(path, copy)
