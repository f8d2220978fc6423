"""Answers of earlier runs, each valid for exactly the files, rules and code it was found with."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as once
from pathlib import Path

import msgspec

from unstuck._version import __version__
from unstuck.linting.outcome import Outcome
from unstuck.source.files import digest_at, digest_of

MOST_ENTRIES = 20_000
LARGEST_ENTRY = 1024 * 1024
CHECKSUM = 16
OWN_CODE = ("rules", "source", "linting", "judge.py", "findings.py", "rule.py", "events.py")
ENCODE, DECODE = msgspec.msgpack.encode, msgspec.msgpack.Decoder(Outcome).decode


class Cache:
    """One small file for each linted file; whatever is wrong with it, it is as if it were not there."""

    def __init__(self, folder: Path, codes: Sequence[str]) -> None:
        self._folder = folder
        self._codes = codes
        self._digests: dict[str, bytes] = {}
        self._writes = True

    def get(self, path: Path) -> Outcome | None:
        """The answer of an earlier run, if every file it depends on is still the same."""
        try:
            raw = self._entry(path).read_bytes()
        except OSError:
            return None
        if digest_of(raw[CHECKSUM:]) != raw[:CHECKSUM]:
            return None
        try:
            outcome = DECODE(raw[CHECKSUM:])
        except (msgspec.MsgspecError, ValueError):
            return None
        return outcome if all(self._now(name) == digest for name, digest in outcome.seen.items()) else None

    def put(self, path: Path, outcome: Outcome) -> None:
        """Keep an answer, whole or not at all."""
        payload = ENCODE(outcome)
        if not self._writes or not outcome.is_lasting or len(payload) > LARGEST_ENTRY:
            return
        entry = self._entry(path)
        draft = f"{entry}.{os.getpid()}.part"
        try:
            with open(draft, "wb") as file:
                file.write(digest_of(payload) + payload)
            os.replace(draft, entry)
        except OSError:
            self._writes = False  # a full disk, perhaps; nothing depends on the cache
            with suppress(OSError):
                os.unlink(draft)

    def prune(self) -> None:
        """Forget the oldest when there are too many entries."""
        try:
            entries = list(os.scandir(self._folder))
            if len(entries) > MOST_ENTRIES:
                entries.sort(key=lambda entry: entry.stat().st_mtime)
                for entry in entries[: len(entries) - MOST_ENTRIES // 2]:
                    os.unlink(entry.path)
        except OSError:
            return  # another process is at it

    def _entry(self, path: Path) -> Path:
        parts = (__version__, sys.version, _own_code(), *self._codes, os.getcwd(), str(path), os.path.realpath(path))
        return self._folder / digest_of("\0".join(parts).encode(errors="surrogateescape")).hex()

    def _now(self, path: str) -> bytes:
        if path not in self._digests:
            self._digests[path] = digest_at(Path(path))
        return self._digests[path]


def open_cache(codes: Sequence[str]) -> Cache | None:
    """The cache of the current directory, or the user's own where that cannot be written, or none."""
    for folder in (Path(".unstuck"), _users_folder()):
        try:
            kept = folder / "cache"
            kept.mkdir(parents=True, exist_ok=True)
            ignore = folder / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            if os.access(kept, os.W_OK):
                return Cache(kept, codes)
        except OSError:
            continue
    return None


def _users_folder() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without HOME, a user whom the system does not know has none: nothing can be below a device.
    return Path(os.devnull if folder.startswith("~") else folder) / "unstuck"


@once
def _own_code() -> str:
    """A digest of everything here that a finding depends on."""
    package = Path(__file__).parent.parent
    files = [file for name in OWN_CODE for file in _python_files(package / name)]
    return digest_of(b"\0".join(Path(file).read_bytes() for file in files)).hex()


def _python_files(path: Path) -> list[str]:
    if path.suffix == ".py":
        return [str(path)]
    walked = (os.path.join(base, name) for base, _, names in os.walk(path) for name in names)
    return sorted(name for name in walked if name.endswith(".py"))
