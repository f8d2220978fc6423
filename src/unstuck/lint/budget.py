"""How much time and memory one file may take, enforced by the kernel."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from unstuck.source.documents.files import LARGEST_FILE

SECONDS, SECONDS_PER_MB = 10, 10
"""Of processor time. An ordinary file takes some milliseconds, a megabyte of training code two seconds."""
PATIENCE = 6
"""How many times as long a file may take by the clock, on a busy machine."""
GIGABYTES, GIGABYTES_PER_MB = 1.0, 0.25
"""In addition to what the process uses already. A megabyte of code becomes about 150 MB of syntax tree."""
OUT_OF_MEMORY = 77
"""Exit code of a worker that ran out of memory."""


class Beyond(StrEnum):
    """Why a file was skipped."""

    TIME = "time"
    MEMORY = "memory"
    CRASH = "crash"


class Budget:
    """The limits for a file of this size."""

    def __init__(self, size: int) -> None:
        megabytes = min(size, LARGEST_FILE) / 2**20
        self.seconds = SECONDS + SECONDS_PER_MB * megabytes
        self.gigabytes = GIGABYTES + GIGABYTES_PER_MB * megabytes

    def enforce(self) -> None:
        """Make the kernel kill this process when it exceeds the limits. Called again for every file."""
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + self.seconds))
        used_bytes = _address_space()
        if used_bytes:
            _limit(resource.RLIMIT_AS, used_bytes + int(self.gigabytes * 2**30))

    def sentence(self, path: Path, beyond: Beyond) -> str:
        """The message for a file that was skipped."""
        if beyond is Beyond.TIME:
            return f"{path} was skipped: it takes more than {self.seconds:.0f} seconds to read."
        if beyond is Beyond.MEMORY:
            return f"{path} was skipped: it takes more than {self.gigabytes:.2g} GB of memory to read."
        return f"{path} was skipped: it crashed the process that read it, which is a bug in unstuck."


@contextmanager
def memory_limit(gigabytes: float) -> Iterator[None]:
    """A limit for this process, in addition to what it uses already, that ends with the block."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = _address_space()
    if used_bytes:
        _limit(resource.RLIMIT_AS, used_bytes + int(gigabytes * 2**30))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _limit(kind: int, amount: int) -> None:
    """Set our own limit, at most to the hard limit."""
    import resource

    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))


def _address_space() -> int:
    """Bytes that this process has mapped; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError):
        return 0
