"""The numbers of a run for other programs: each module here is a format, named after its file.

A module has

    KIND = Kind.FILE        what it makes
    NEEDS = "pyarrow"       the package without which it cannot be written, or ""
    EXTRA = "parquet"       the extra of unstuck that brings it
    def content(record: Record, path: Path) -> str | bytes
        Of a text or file. `path` is where the record was read from.
    def write(record: Record, path: Path, folder: str) -> None
        Of a folder.
"""

from __future__ import annotations

import importlib
import importlib.util
from enum import StrEnum
from types import ModuleType

from unstuck.importable import importable


class Kind(StrEnum):
    """What a format makes."""

    TEXT = "text"
    """It may go to stdout."""
    FILE = "file"
    FOLDER = "folder"


def names() -> tuple[str, ...]:
    """Every format, found without importing any."""
    return tuple(name for name, _ in importable(__path__))


def module_of(name: str) -> ModuleType:
    """The module of the format of this name."""
    return importlib.import_module(f"{__name__}.{name}")


def missing(name: str) -> str:
    """Why this format cannot be written here, as a sentence; empty if it can."""
    module = module_of(name)
    spec = importlib.util.find_spec(module.NEEDS) if module.NEEDS else None
    if not module.NEEDS or (spec is not None and spec.has_location):
        return ""
    return f"--format {name} needs {module.NEEDS}, which is not installed here: pip install 'unstuck[{module.EXTRA}]'"
