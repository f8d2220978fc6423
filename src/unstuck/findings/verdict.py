"""What the rules say about a run, a script or live objects: ranked diagnoses, and what was checked."""

from __future__ import annotations

import msgspec

from unstuck.findings.diagnosis import Diagnosis
from unstuck.findings.finding import Severity
from unstuck.record.outcome import Achieved, Outcome
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
    scope: str = ""
    """What was looked at, where neither a run nor files say it: completes "Nothing found in"."""
    checked: tuple[str, ...] = ()
    """Codes of the rules that had something to look at."""
    not_checked: tuple[str, ...] = ()
    """A sentence for each group of rules that had nothing to look at, and why."""
    gaps: tuple[str, ...] = ()
    """A sentence for each thing that a record lacks: what could not be watched, damaged lines."""
    failures: tuple[str, ...] = ()
    """A sentence for each rule that broke down. Never the user's fault."""

    def count(self, severity: Severity) -> int:
        """How many diagnoses speak this loud."""
        return sum(diagnosis.severity is severity for diagnosis in self.diagnoses)

    @property
    def principal(self) -> Diagnosis | None:
        """What to fix first: neither advice, nor about memory, time or reproducibility."""
        loud = (d for d in self.diagnoses if d.severity is not Severity.ADVICE and not d.is_hygiene)
        return next(loud, None)

    @property
    def in_trouble(self) -> bool:
        """Did a training diverge, or end no better than a guess?"""
        return any(outcome.word.is_trouble for outcome in self.outcomes)

    @property
    def learns(self) -> bool:
        """Did every training learn well? Then nothing is the cause of anything."""
        return bool(self.outcomes) and all(outcome.word is Achieved.LEARNS for outcome in self.outcomes)

    @property
    def is_measured(self) -> bool:
        """Is it known of every training how far it is from a guess?"""
        return all(
            outcome.beats_guess_by is not None or outcome.right is not None or outcome.evaluated_right is not None
            for outcome in self.outcomes
        )

    def reaches(self, severity: Severity) -> bool:
        """Is any diagnosis as loud as this, or louder?"""
        return any(diagnosis.severity.at_least(severity) for diagnosis in self.diagnoses)
