"""What a report shows, whatever its format."""

from __future__ import annotations

import msgspec

from unstuck.events import Crash, Place, RunStatus
from unstuck.findings.curve import Curve
from unstuck.findings.preview import Preview
from unstuck.findings.verdict import Verdict


class Problem(msgspec.Struct, frozen=True):
    """Something that could not be checked: a file that does not parse, a rule that failed."""

    message: str
    place: Place | None = None


LOOKED_FOR = "nothing called backward(), and no optimizer stepped"
"""What a run without a training lacks."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Which run the report is about, and how it ended."""

    script: str
    arguments: tuple[str, ...] = ()
    status: RunStatus = RunStatus.UNFINISHED
    reason: str = ""
    """Why it was stopped."""
    exit_code: int | None = None
    steps: int = 0
    trained: bool = True
    """Was a loss back-propagated, or did an optimizer step?"""
    by_hand: bool = False
    """Are its steps updates that the program makes by itself, without an optimizer?"""
    seconds: float | None = None
    crash: Crash | None = None
    record: str = ""
    """Where the record is."""
    received: tuple[str, ...] = ()
    """What the models received, a sentence for each input."""
    has_pictures: bool = False
    """Is there a batch on record to look at?"""
    previews: tuple[Preview, ...] = ()
    curves: dict[str, Curve] = {}
    """The loss by step, one curve for each optimizer that has a loss of its own."""

    @property
    def step_name(self) -> str:
        """What one of its steps is called."""
        return "manual update" if self.by_hand else "optimizer step"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of one command."""

    command: str
    verdict: Verdict
    files: int = 0
    """How many scripts were read as text."""
    run: RunSummary | None = None
    problems: tuple[Problem, ...] = ()
    changed: frozenset[str] = frozenset()
    """Files whose text is no longer what ran, so that their lines must not be quoted."""

    texts: dict[str, str] = {}
    """Files whose text is another than what lies on disk, such as one that came from stdin."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        """Everything that could not be looked at because something went wrong."""
        return (*self.problems, *(Problem(sentence) for sentence in self.verdict.failures))
