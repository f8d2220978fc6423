"""What the rules say about a run, a script or live objects: ranked diagnoses, and what was checked."""

from __future__ import annotations

import msgspec

from unstuck.findings.diagnosis import Diagnosis
from unstuck.findings.finding import Severity
from unstuck.record.outcome import Outcome
from unstuck.record.trend import Trend


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules say: diagnoses, the first being what to fix first, and what was not looked at."""

    diagnoses: tuple[Diagnosis, ...] = ()
    unconfirmed: tuple[Diagnosis, ...] = ()
    """Seen in the text of a script whose run did not show them."""
    good_news: tuple[Diagnosis, ...] = ()
    """What rules that look for something good have found; no pitfall."""
    ignored: tuple[Diagnosis, ...] = ()
    """Silenced by a comment on their line."""
    trend: Trend | None = None
    outcomes: tuple[Outcome, ...] = ()
    """What each training of a run achieved, in the order in which they began."""
    checked: tuple[str, ...] = ()
    """Codes of the rules that had something to look at."""
    not_checked: tuple[str, ...] = ()
    """A sentence for each thing that was not looked at, and why."""
    failures: tuple[str, ...] = ()
    """A sentence for each rule that broke down. Never the user's fault."""

    def count(self, severity: Severity) -> int:
        """How many diagnoses speak this loud."""
        return sum(diagnosis.severity is severity for diagnosis in self.diagnoses)

    def reaches(self, severity: Severity) -> bool:
        """Is any diagnosis as loud as this, or louder?"""
        return any(diagnosis.severity.at_least(severity) for diagnosis in self.diagnoses)
