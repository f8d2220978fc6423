"""What a training achieved: where its loss began and ended, measured against a guess, and a word for it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from unstuck.record.trend import Direction, Trend

if TYPE_CHECKING:
    from unstuck.record import Record


class Achieved(StrEnum):
    """What a training achieved, in a word."""

    LEARNS = "learns"
    SLOWLY = "learns slowly"
    GUESSES = "does not beat a guess"
    MEMORIZES = "memorizes"
    """Training is far better than evaluation, which is no better than a guess or gets worse."""
    DIVERGES = "diverges"
    """It rises and stays up, or ends NaN or infinite."""
    UNSTABLE = "unstable"
    UNCLEAR = "unclear"
    """Too short, too noisy, or a loss that need not fall."""

    @property
    def is_trouble(self) -> bool:
        """Does it need a cause? Then a report never ends with "nothing found", and the exit code is not 0."""
        return self in (Achieved.GUESSES, Achieved.DIVERGES)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one training achieved. A number is None where it is not known."""

    word: Achieved
    training: str = ""
    """Its name where a program has several: the optimizer's label, or `fine-tuning of Net`."""
    steps: int = 0
    first: float | None = None
    """The loss at the very start."""
    last: float | None = None
    """The loss at the end, averaged over a pass through the data where that is known."""
    guess: float | None = None
    """The loss of the best constant answer for the targets that were seen."""
    right: float | None = None
    """The share of training examples that were right at the end; for regression the share of variance explained."""
    right_guess: float | None = None
    """The share that the best constant answer gets right."""
    evaluated: float | None = None
    """The loss in the last evaluation."""
    evaluated_right: float | None = None
    is_regression: bool = False
    """`right` and `evaluated_right` are shares of variance explained, not of examples."""
    trend: Trend | None = None


WORDS = {
    Direction.FALLING: Achieved.LEARNS,
    Direction.CRAWLING: Achieved.SLOWLY,
    Direction.FLAT: Achieved.GUESSES,
    Direction.RISING: Achieved.DIVERGES,
    Direction.NON_FINITE: Achieved.DIVERGES,
    Direction.SPIKING: Achieved.UNSTABLE,
}


def outcomes_of(record: Record, trend: Trend | None) -> tuple[Outcome, ...]:
    """One for each training in the record."""
    if trend is None or not trend.steps:
        return ()
    word = WORDS.get(trend.word, Achieved.UNCLEAR)
    return (Outcome(word=word, steps=trend.steps, first=trend.first, last=trend.last, trend=trend),)
