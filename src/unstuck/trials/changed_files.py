"""Whether files changed while trials ran, for systems on which the kernel does not rule it out."""

from __future__ import annotations

import os
from collections.abc import Iterator

MOST_FILES = 20_000
_Looks = tuple[int, int, int, int]


class Files:
    """How the files below a folder looked at one time: permissions, sizes, times and numbers, not contents."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before = dict(_looks_below(folder))

    @property
    def count(self) -> int:
        """How many are compared."""
        return len(self._before)

    def changed(self) -> list[str]:
        """What is new, gone or different now."""
        now = dict(_looks_below(self._folder))
        different = [path for path in self._before.keys() & now.keys() if self._before[path] != now[path]]
        # Beyond the limit some were not looked at, and need be neither gone nor new.
        gone = [p for p in self._before.keys() - now.keys() if not os.path.lexists(os.path.join(self._folder, p))]
        new = [] if len(self._before) == MOST_FILES else now.keys() - self._before.keys()
        return sorted([*different, *gone, *new])


def _looks_below(folder: str) -> Iterator[tuple[str, _Looks]]:
    seen = 0
    todo = [folder]
    while todo and seen < MOST_FILES:
        here = todo.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name in (".unstuck", "__pycache__"):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
            elif seen < MOST_FILES:
                seen += 1
                looks = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
                yield os.path.relpath(entry.path, folder), looks
