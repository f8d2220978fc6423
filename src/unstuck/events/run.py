"""How a run began and ended, and what could not be watched."""

from __future__ import annotations

from unstuck.events.base import Event

RECORD_VERSION = 1


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
    """How it came to be watched: by the command `run`, or by a call of `watch` in the program itself."""


class RunEnded(Event, tag="run-ended", frozen=True):
    """`finished`, `exited` (sys.exit), `interrupted` (Ctrl-C), `crashed`, or `stopped` by us on demand."""

    status: str = "finished"
    exit_code: int = 0
    seconds: float = 0.0
    steps: int = 0
    reason: str = ""
    """Why it was stopped."""


class Note(Event, tag="note", frozen=True):
    """Something that could not be watched, and why. Shown in the report so that silence is not mistaken for health."""

    text: str = ""
