"""Finding and decoding Python files, with one clear sentence for each that cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from unstuck.events import Place
from unstuck.regular import read_regular

SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv"}
SUFFIXES = (".py", ".ipynb")
LARGEST_FILE = 8 * 1024 * 1024
ABSENT = b""
UNREADABLE = b"unreadable"


class SourceError(Exception):
    """A file that cannot be read as Python. Its text is a sentence for the user."""

    def __init__(self, message: str, place: Place | None = None) -> None:
        super().__init__(message)
        self.place = place


def find_files(
    paths: Sequence[str],
    skips: Callable[[str, bool], bool] = lambda path, is_folder: False,
    problems: list[SourceError] | None = None,
) -> list[Path]:
    """The files to read, each once: every named file, and those in named folders unless `skips(path, is_folder)`.

    Folders that cannot be searched are added to `problems`.
    """
    found: dict[str, Path] = {}
    for name in paths:
        path = Path(name)
        if path.is_dir():
            troubles: list[SourceError] = []
            inside = sorted(_files_below(path, skips, troubles))
            if not inside and not troubles:
                any_skipped = any(_files_below(path, lambda name, is_folder: False, []))
                skipped = " except those that .gitignore or exclude skips"
                why = skipped if any_skipped else "; name a script or a folder that does"
                raise SourceError(f"{name} contains no Python files{why}.")
            for file in inside:
                found.setdefault(os.path.abspath(file), file)
            if problems is not None:
                problems += troubles
        elif path.exists():
            found[os.path.abspath(path)] = path
        else:
            raise SourceError(f"{name} does not exist; check the path, which is relative to {Path.cwd()}.")
    return list(found.values())


def _files_below(folder: Path, skips: Callable[[str, bool], bool], problems: list[SourceError]) -> Iterator[Path]:
    def note(problem: OSError) -> None:
        why = problem.strerror or problem
        problems.append(SourceError(f"{problem.filename} cannot be searched ({why}); check its permissions."))

    for base, folders, names in os.walk(folder, onerror=note):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED_FOLDERS and not name.startswith(".") and not skips(os.path.join(base, name), True)
        ]
        yield from (
            Path(base, name) for name in names if name.endswith(SUFFIXES) and not skips(os.path.join(base, name), False)
        )


def read_text(path: Path) -> str:
    """The decoded text of a Python file, line ends as `\\n`, or a SourceError."""
    return decode(read_raw(path), str(path))


def read_raw(path: Path) -> bytes:
    """The content of a file, or a SourceError that says why it cannot be read."""
    try:
        if not path.is_file():
            raise SourceError(f"{path} is not a regular file; name a Python source file.")
        if path.stat().st_size > LARGEST_FILE:
            raise SourceError(f"{path} is larger than {LARGEST_FILE // 2**20} MB; it was skipped.")
        return read_regular(path, LARGEST_FILE)
    except OSError as problem:
        raise SourceError(f"{path} cannot be read ({problem.strerror}); check the file and its permissions.") from None


def decode(raw: bytes, name: str) -> str:
    """The text of a Python file, line ends as `\\n`, or a SourceError."""
    if b"\0" in raw:
        raise SourceError(f"{name} is not text (it contains null bytes); name a Python source file.")
    try:
        text = raw.decode(encoding_of(raw))
    except (SyntaxError, UnicodeError, LookupError):
        raise SourceError(f"{name} cannot be decoded; save it as UTF-8 or declare its encoding on line 1.") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def digest_of(raw: bytes) -> bytes:
    """A short key for the content of a file."""
    try:
        from _blake2 import blake2b  # hashlib would load OpenSSL, which takes as long as linting a small file
    except ImportError:
        from hashlib import blake2b
    return blake2b(raw, digest_size=16).digest()


def digest_at(path: Path) -> bytes:
    """The digest of a file; ABSENT or UNREADABLE if it has none."""
    if not os.path.isfile(path):
        return ABSENT
    try:
        return digest_of(read_raw(path))
    except SourceError:
        return UNREADABLE


def encoding_of(raw: bytes) -> str:
    """The declared encoding; tokenize, which is slow to import, is loaded only if a line declares one."""
    if not any(b"coding" in line for line in raw.split(b"\n", 2)[:2]):
        return "utf-8-sig"
    import io
    import tokenize

    # Old Mac files end their lines in a single carriage return.
    first_lines = raw if b"\n" in raw else raw.replace(b"\r", b"\n")
    return tokenize.detect_encoding(io.BytesIO(first_lines).readline)[0]
