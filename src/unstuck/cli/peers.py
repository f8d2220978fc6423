"""Have the other ranks of a job on this machine ended? Observed from outside, without communication.

A collective of ours would hang a job in which one rank does not take part. `/proc` needs no partner: the ranks are
children of one launcher, and the environment of each says which rank it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from unstuck.cli.launchers import Rank, rank_among

PROCESSES = Path("/proc")
NAME = "unstuck-waits"
"""The process name of a rank that waits for the others, so that two waiting ranks do not wait for each other."""
PATIENCE = 3600.0
"""Seconds to wait: a rank may have left a daemon behind that looks like a rank."""
PAUSES = (0.1, 2.0)
"""Seconds between two checks, at first and later."""


def can_be_seen(rank: Rank) -> bool:
    """Do all ranks of the job run on this machine, and does its kernel show them?"""
    return rank.world == 1 or (rank.here == rank.world and (PROCESSES / "self" / "environ").exists())


class Peers:
    """The other ranks of a job on this machine. Created before the program runs, which may change its environment."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._launcher = _launcher_of(rank) if rank.world > 1 else 0

    def wait(self, patience: float = PATIENCE) -> bool:
        """Wait until no other rank is running; False if one still is after `patience` seconds."""
        if self._rank.world == 1:
            return True
        (PROCESSES / "self" / "comm").write_text(NAME)
        deadline, pause = time.monotonic() + patience, PAUSES[0]
        while self._is_any_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, PAUSES[1])
        return True

    def _is_any_running(self) -> bool:
        processes = [process for process in _processes() if process.number != os.getpid()]
        ended = {self._rank} | {process.rank for process in processes if process.name == NAME and process.rank}
        # A child whose rank cannot be read, because it was renamed, may be one that is running.
        return any(
            process.parent == self._launcher and process.name != NAME and process.rank not in ended
            for process in processes
        )


class _Process(NamedTuple):
    number: int
    name: str
    parent: int
    rank: Rank | None


def _launcher_of(rank: Rank) -> int:
    """The nearest process above this one that is not this rank itself, as a shell around the program is."""
    above = os.getppid()
    process = _process(above)
    while process is not None and process.rank == rank:
        above = process.parent
        process = _process(above)
    return above


def _processes() -> Iterator[_Process]:
    for entry in os.listdir(PROCESSES):
        process = _process(int(entry)) if entry.isdigit() else None
        if process is not None:
            yield process


def _process(number: int) -> _Process | None:
    """A process by its number; None if it has ended."""
    folder = PROCESSES / str(number)
    try:
        before, _, after = (folder / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    state, parent = after.split()[:2]
    name = before.partition("(")[2]
    return None if state in "ZX" else _Process(number, name, int(parent), _rank_in(folder / "environ"))


def _rank_in(environment: Path) -> Rank | None:
    try:
        text = os.fsdecode(environment.read_bytes())
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in text.split("\0"))
    return rank_among({key: value for key, _, value in pairs})
