"""What `diagnose` found out, kept next to its records, so that it can be shown again without repeating it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unstuck._version import __version__
from unstuck.regular import read_regular
from unstuck.view.document import Document, encoded

NAME = "page.json"
LARGEST = 16 * 2**20


def keep(shown: Document, folder: Path) -> None:
    """Write it into the folder of its records; a disk that is full or read-only costs nothing but this."""
    try:
        (folder / NAME).write_bytes(encoded(shown))
    except OSError:
        return


def kept(folder: Path) -> Document | None:
    """What was kept there by this version, if anything."""
    try:
        found = msgspec.json.decode(read_regular(folder / NAME, LARGEST), type=Document)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.version == __version__ else None
