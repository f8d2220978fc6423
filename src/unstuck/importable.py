"""What can be imported from a folder, found without importing it. `pkgutil` does the same, but takes longer to load."""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.metadata import EntryPoint


def importable(folders: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name and path of every Python file, and of every folder with an `__init__.py`, by name."""
    for folder in folders:
        for file in sorted(os.listdir(folder)):
            path = os.path.join(folder, file)
            if file.endswith(".py"):
                if file != "__init__.py":
                    yield file.removesuffix(".py"), path
            elif os.path.exists(os.path.join(path, "__init__.py")):
                yield file, path


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Those of the group that installed packages bring, in the order of `sys.path`.

    `importlib.metadata` would read the metadata of every installed package; looking for the group's name in the files
    costs a tenth of that, and nothing more where no package has any.
    """
    found = {}
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            installed = [name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info"))]
            for path in (os.path.join(folder or ".", name) for name in sorted(installed)):
                with contextlib.suppress(OSError), open(f"{path}/entry_points.txt", "rb", buffering=0) as text:
                    if f"[{group}]".encode() in text.read():
                        from importlib.metadata import PathDistribution
                        from pathlib import Path

                        entries = PathDistribution(Path(path)).entry_points.select(group=group)
                        found.update({(entry.name, entry.value): entry for entry in entries})
    return tuple(found.values())
