"""How a run began and ended, and what could not be watched."""

from __future__ import annotations

from enum import StrEnum

from unstuck.events.base import Event

RECORD_VERSION = 1


class RunStatus(StrEnum):
    """How a run ended, or that it has not. A record holds the first five."""

    FINISHED = "finished"
    EXITED = "exited"
    """By sys.exit."""
    INTERRUPTED = "interrupted"
    """By Ctrl-C."""
    CRASHED = "crashed"
    STOPPED = "stopped"
    """By us, on demand."""
    RUNNING = "running"
    UNFINISHED = "unfinished"
    """The record has no end."""
    UNRECORDED = "unrecorded"
    """The record has no end, as on a full disk, but the process is known to have ended."""
    LOGGED = "logged"
    """It was not watched: all that is known of it is what somebody else logged."""


class RunStarted(Event, tag="run-started", frozen=True):
    """The first line of every record."""

    version: int = RECORD_VERSION
    script: str = ""
    arguments: tuple[str, ...] = ()
    started: str = ""
    unstuck: str = ""
    python: str = ""
    torch: str = ""
    process: int = 0
    source_hash: str = ""
    """SHA-256 of the script as it ran, so that a later report knows whether the text is still the same."""
    watched: str = "run"
    """How it came to be watched: by the command `run`, or by a call of `watch` in the program itself; `objects` for
    trials on live objects, `logged` for a run that was not watched, of which only a log is known."""


class RunEnded(Event, tag="run-ended", frozen=True):
    """The last line of a record."""

    status: RunStatus = RunStatus.FINISHED
    exit_code: int = 0
    seconds: float = 0.0
    steps: int = 0
    reason: str = ""
    """Why it was stopped."""


class Note(Event, tag="note", frozen=True):
    """Something that could not be watched, and why. Shown in the report so that silence is not mistaken for health."""

    text: str = ""
