"""Answers of earlier runs, each valid for exactly the files, rules and code it was found with."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path

import msgspec

from unstuck._version import __version__
from unstuck.lint.outcome import Outcome
from unstuck.record.own_folder import FOLDER, NotOurs, own_folder, remove_own_files
from unstuck.rule import files_of_other_packages
from unstuck.source.documents.files import digest_at, digest_of

MOST_ENTRIES = 20_000
LARGEST_ENTRY = 1024 * 1024
OWN_NAME = re.compile(r"[0-9a-f]{32}(\.\d+\.part)?")
CHECKSUM = 16
OWN_CODE = ("rules", "source", "lint", "findings", "events", "judge.py", "rule.py")
ENCODE, DECODE = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Outcome).decode


class Cache:
    """One small file for each linted file; whatever is wrong with it, it is as if it were not there.

    The folder is ours, yet what lies in it may have come with somebody else's repository.
    """

    def __init__(self, folder: Path, below: Path, codes: Sequence[str]) -> None:
        self._folder = folder
        self._below = below
        self._codes = codes
        self._digests: dict[str, bytes] = {}
        self._writes = True

    def get(self, path: Path) -> Outcome | None:
        """The answer of an earlier run, if every file it depends on is still the same."""
        raw = _read_entry(self._entry(path))
        if raw is None or digest_of(raw[CHECKSUM:]) != raw[:CHECKSUM]:
            return None
        try:
            outcome = DECODE(raw[CHECKSUM:])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return outcome if all(self._now(name) == digest for name, digest in outcome.seen.items()) else None

    def put(self, path: Path, outcome: Outcome) -> None:
        """Keep an answer, whole or not at all."""
        if not self._writes or not outcome.is_lasting:
            return
        try:
            payload = ENCODE(outcome)
        except UnicodeEncodeError:
            return  # a file name that is not UTF-8
        if len(payload) > LARGEST_ENTRY:
            return
        entry = self._entry(path)
        draft = f"{entry}.{os.getpid()}.part"
        try:
            with open(draft, "xb") as file:  # never through a link that lies there
                file.write(digest_of(payload) + payload)
            os.replace(draft, entry)
        except OSError:
            self._writes = False  # a full disk, perhaps; nothing depends on the cache
            with suppress(OSError):
                os.unlink(draft)

    def prune(self) -> None:
        """Forget the oldest when there are too many entries."""
        entries = entries_in(self._folder)
        if len(entries) > MOST_ENTRIES:
            with suppress(OSError, NotOurs):  # another process is at it
                oldest = sorted(entries, key=entries.__getitem__)[: len(entries) - MOST_ENTRIES // 2]
                remove_own_files(self._folder, oldest, below=self._below)

    def _entry(self, path: Path) -> Path:
        parts = (__version__, sys.version, _own_code(), *self._codes, os.getcwd(), str(path), os.path.realpath(path))
        return self._folder / digest_of("\0".join(parts).encode(errors="surrogateescape")).hex()

    def _now(self, path: str) -> bytes:
        if path not in self._digests:
            self._digests[path] = digest_at(Path(path))
        return self._digests[path]


def open_cache(codes: Sequence[str]) -> Cache | None:
    """The cache of the current directory, or the user's own where that cannot be used, or none."""
    for folder in (FOLDER, _users_folder()):
        below = folder.absolute().parent
        try:
            below.mkdir(parents=True, exist_ok=True)
            kept = own_folder(folder / "cache", below=below)
            if os.access(kept, os.W_OK):
                return Cache(kept, below, codes)
        except (OSError, NotOurs):
            continue
    return None


def entries_in(folder: Path) -> dict[str, int]:
    """The names of our own pattern in a cache, drafts included, with the time each was written."""
    found: dict[str, int] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if OWN_NAME.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                found[entry.name] = entry.stat(follow_symlinks=False).st_mtime_ns
    return found


def _read_entry(path: Path) -> bytes | None:
    """What an entry holds, if it is a file of a size that we write: a pipe would wait, a device would never end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with suppress(OSError), open(descriptor, "rb") as file:
        known = os.fstat(descriptor)
        if stat.S_ISREG(known.st_mode) and known.st_size <= LARGEST_ENTRY + CHECKSUM:
            return file.read(LARGEST_ENTRY + CHECKSUM)
    return None


def _users_folder() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without HOME, a user whom the system does not know has none: nothing can be below a device.
    return Path(os.devnull if folder.startswith("~") else folder) / "unstuck"


@once
def _own_code() -> str:
    """A digest of all code that a finding depends on, rules of other packages included."""
    package = Path(__file__).parent.parent
    files = [file for name in OWN_CODE for file in _python_files(package / name)]
    files += map(str, files_of_other_packages())
    return digest_of(b"\0".join(Path(file).read_bytes() for file in files)).hex()


def _python_files(path: Path) -> list[str]:
    if path.suffix == ".py":
        return [str(path)]
    walked = (os.path.join(base, name) for base, _, names in os.walk(path) for name in names)
    return sorted(name for name in walked if name.endswith(".py"))
