"""What `unstuck diagnose` found out, as plain data for every kind of report."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path

import msgspec

from unstuck.findings import Diagnosis
from unstuck.findings.result import Result
from unstuck.findings.results import Experiment, Isolation, Proof, ProofVerdict


class Reason(StrEnum):
    """Why something was not tried, and why an investigation ended."""

    PROVEN = "proven"
    """A remedy was shown to help."""
    ANSWERED = "answered"
    """An experiment has shown an error."""
    GOING_WELL = "going-well"
    BUDGET = "budget"
    INTERRUPTED = "interrupted"
    NOTHING_LEFT = "nothing-left"
    """Everything that could be tried was tried."""


def time_needed(needed: float, left: float, budget: float) -> str:
    """`about 40 s, and 12 of 150 s were left`."""
    return f"about {math.ceil(needed)} s, and {math.floor(left)} of {budget:.0f} s were left"


class Skipped(msgspec.Struct, frozen=True):
    """Something that was not tried."""

    what: str
    """An experiment by its name, or whose remedy it is by its code."""
    why: Reason
    needed: float | None = None
    """Seconds that it would have taken at least, if the budget was too short,"""
    left: float | None = None
    """and what was left of it."""


class Investigation(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: the cause, the proof, the change, what was ruled out, and what to do next."""

    result: Result
    """The watched run with everything that was found, by whichever witness; the first diagnosis is the answer."""
    experiments: tuple[Experiment, ...] = ()
    proofs: tuple[Proof, ...] = ()
    together: Proof | None = None
    """All confirmed remedies at once, where there are several."""
    left_over: tuple[str, ...] = ()
    """Codes of what is still found, errors and warnings, once the remedy of the answer is in place."""
    ruled_out: tuple[str, ...] = ()
    """A sentence for each thing that was tested and is not the cause."""
    skipped: tuple[Skipped, ...] = ()
    protected: str = ""
    """What was done so that the program did not touch the user's files."""
    isolation: Isolation | None = None
    ended_badly: str = ""
    """`was killed by SIGSEGV`, `exited with code 3`: how the watched run ended, if that was its own failure."""
    next_command: str = ""
    again: str | None = None
    """The script and its arguments as one would type them; None for live objects."""
    seconds: float = 0.0
    budget: float = 0.0
    folder: Path = Path()
    ended: Reason = Reason.NOTHING_LEFT

    @property
    def interrupted(self) -> bool:
        """Is this what was known when the user had enough?"""
        return self.ended is Reason.INTERRUPTED

    @property
    def principal(self) -> Diagnosis | None:
        """The answer, if there is one."""
        return self.result.verdict.principal

    @property
    def is_proven(self) -> bool:
        """Was the fix of the answer shown to help?"""
        principal = self.principal
        proof = self.proof_of(principal) if principal is not None else None
        return proof is not None and proof.verdict is ProofVerdict.CONFIRMED

    def proof_of(self, diagnosis: Diagnosis) -> Proof | None:
        """What became of it when its remedy was tried."""
        return next((proof for proof in self.proofs if proof.is_about(diagnosis)), None)
