"""Finding and decoding Python files, with one clear sentence for each that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from unstuck.events import Place

SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}
LARGEST_FILE = 8 * 1024 * 1024


class SourceError(Exception):
    """A file that cannot be read as Python. Its text is a sentence for the user."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.place = place


def find_files(paths: Sequence[str]) -> list[Path]:
    """The Python files named by `paths`: files as they are, folders searched, each file once."""
    found: dict[Path, None] = {}
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inside = sorted(_python_files(path))
            if not inside:
                raise SourceError(f"{name} holds no Python files; name a script or a folder that does.")
            found.update(dict.fromkeys(inside))
        elif path.exists():
            found[path] = None
        else:
            raise SourceError(f"{name} does not exist; check the path, it is read from {Path.cwd()}.")
    return list(found)


def _python_files(folder: Path) -> Iterator[Path]:
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        yield from (Path(base) / name for name in names if name.endswith(".py"))


def read_text(path: Path) -> str:
    """The decoded text of a Python file, line ends as `\\n`, or a SourceError."""
    try:
        if not path.is_file():
            raise SourceError(f"{path} is not a regular file; name a Python source file.")
        if path.stat().st_size > LARGEST_FILE:
            raise SourceError(f"{path} is larger than {LARGEST_FILE // 2**20} MB; it was skipped.")
        raw = path.read_bytes()
    except OSError as problem:
        raise SourceError(f"{path} cannot be read ({problem.strerror}); check the file and its permissions.") from None
    if b"\0" in raw:
        raise SourceError(f"{path} is not text (it holds null bytes); name a Python source file.")
    try:
        text = raw.decode(_encoding(raw))
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise SourceError(f"{path} cannot be decoded; save it as UTF-8 or declare its encoding on line 1.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _encoding(raw: bytes) -> str:
    """The declared encoding; the standard library's own reader of declarations is loaded only if there is one."""
    if not any(b"coding" in line for line in raw.split(b"\n", 2)[:2]):
        return "utf-8-sig"
    import io
    import tokenize

    return tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
