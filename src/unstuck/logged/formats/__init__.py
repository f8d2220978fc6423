"""The kinds of logs that can be read: each module here is one.

A module has

    def accepts(path: Path) -> bool     is it one of these, judged by names alone?
    def read(path: Path) -> Log         raises LogError
"""

from __future__ import annotations

import importlib
from pathlib import Path

from unstuck.importable import importable
from unstuck.logged import Log
from unstuck.record.store import record_file


def log_at(path: Path) -> Log | None:
    """The log at a path; None if there is none of a known kind. Raises LogError for one that cannot be read."""
    if record_file(path).exists():
        return None
    for name, _ in importable(__path__):
        module = importlib.import_module(f"{__name__}.{name}")
        if module.accepts(path):
            found: Log = module.read(path)
            return found
    return None
