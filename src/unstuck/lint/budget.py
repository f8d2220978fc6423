"""How much time and memory one file may take, kept by the kernel and not by the goodwill of whoever reads the file."""

from __future__ import annotations

import math
import os
from enum import StrEnum
from pathlib import Path

from unstuck.source.documents.files import LARGEST_FILE

SECONDS, SECONDS_PER_MB = 10, 10
"""Of processor time. An ordinary file takes some milliseconds, a megabyte of training code two seconds."""
PATIENCE = 6
"""How many times as long a file may take by the clock, on a machine that does other things too."""
GIGABYTES, GIGABYTES_PER_MB = 1.0, 0.25
"""Beyond what the process holds already. A megabyte of code becomes some 150 MB of syntax tree."""
OUT_OF_MEMORY = 77
"""Exit code of a worker that was refused memory."""


class Beyond(StrEnum):
    """Why a file was given up."""

    TIME = "time"
    MEMORY = "memory"
    CRASH = "crash"


class Budget:
    """What a file of this size may take."""

    def __init__(self, size: int) -> None:
        megabytes = min(size, LARGEST_FILE) / 2**20
        self.seconds = SECONDS + SECONDS_PER_MB * megabytes
        self.gigabytes = GIGABYTES + GIGABYTES_PER_MB * megabytes

    def enforce(self) -> None:
        """From now on the kernel ends this process when it takes more. Done anew for every file."""
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + self.seconds))
        held = _address_space()
        if held:
            _limit(resource.RLIMIT_AS, held + int(self.gigabytes * 2**30))

    def sentence(self, path: Path, beyond: Beyond) -> str:
        """What to say of a file that was given up."""
        if beyond is Beyond.TIME:
            return f"{path} takes more than {self.seconds:.0f} seconds to read; it was skipped."
        if beyond is Beyond.MEMORY:
            return f"{path} takes more than {self.gigabytes:.2g} GB of memory to read; it was skipped."
        return f"{path} ended the process that read it, which is a bug in unstuck; it was skipped."


def _limit(kind: int, amount: int) -> None:
    """Lower or raise our own limit, as far as whoever started us permits."""
    import resource

    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (amount if most == resource.RLIM_INFINITY else min(amount, most), most))


def _address_space() -> int:
    """Bytes that this process has mapped; 0 where that cannot be known."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except (OSError, ValueError):
        return 0
