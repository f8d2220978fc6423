"""What can be imported from a folder, found without importing it. `pkgutil` does the same, but takes longer to load."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
