from __future__ import annotations

import pytest

from unstuck.record.outcome import Achieved, Outcome
from unstuck.record.trend import Direction, Trend
from unstuck.report.outcomes import outcome_sentence


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        (
            Outcome(
                word=Achieved.LEARNS,
                steps=940,
                first=2.3,
                last=0.31,
                guess=2.303,
                right=0.91,
                right_guess=0.1,
                evaluated_right=0.88,
            ),
            "Learns: 2.3 → 0.31 in 940 steps, 91 % right (a guess: 10 %); in evaluation 88 %.",
        ),
        (
            Outcome(word=Achieved.LEARNS, steps=300, first=9.4, last=0.01, guess=9.4, right=0.9989, is_regression=True),
            "Learns: 9.4 → 0.01 in 300 steps, 99.9 % of the variance explained.",
        ),
        (
            Outcome(word=Achieved.GUESSES, steps=600, first=2.31, last=2.304, guess=2.303),
            "Does not beat a guess: 2.31 → 2.304 in 600 steps; always answering the same costs 2.303.",
        ),
        (
            Outcome(word=Achieved.GUESSES, steps=600, first=2.3, last=1.1, guess=1.08, is_regression=True),
            "Does not beat a guess: 2.3 → 1.1 in 600 steps; always answering the mean costs 1.08.",
        ),
        (
            Outcome(
                word=Achieved.GUESSES,
                steps=600,
                first=5.0,
                last=2.0,
                term="cross_entropy",
                cost=2.3,
                cost_guess=2.29,
                training="fine-tuning of Net",
            ),
            "fine-tuning of Net does not beat a guess: 5 → 2 in 600 steps; its cross_entropy ends at 2.3, and always "
            "answering the same costs 2.29.",
        ),
        (
            Outcome(
                word=Achieved.MEMORIZES,
                steps=940,
                first=2.3,
                last=0.02,
                right=1.0,
                right_guess=0.1,
                evaluated_right=0.12,
            ),
            "Memorizes: 2.3 → 0.02 in 940 steps, 100 % right, but 12 % in evaluation (a guess: 10 %).",
        ),
        (
            Outcome(word=Achieved.DIVERGES, steps=40, first=2.3, trend=Trend(Direction.NON_FINITE, 40, 2.3, None)),
            "Diverges: the loss ended NaN or infinite (it began at 2.3), 40 steps on record.",
        ),
        (
            Outcome(
                word=Achieved.SLOWLY,
                steps=300,
                first=2.3,
                last=2.1,
                trend=Trend(Direction.CRAWLING, 300, 2.3, 2.1, runs_to_go=10.5),
            ),
            "Learns slowly: 2.3 → 2.1 in 300 steps; at this rate it needs about 10 times more steps to reach 0.",
        ),
        (
            Outcome(word=Achieved.UNSTABLE, steps=300, first=2.3, last=2.1, trend=Trend("spiking", 300, spikes=4)),
            "Unstable: 2.3 → 2.1 in 300 steps, with 4 spikes.",
        ),
        (
            Outcome(word=Achieved.UNCLEAR, steps=12, first=2.3, last=2.1, trend=Trend("too short", 12, 2.3, 2.1)),
            "The loss went 2.3 → 2.1 over 12 steps: too short to tell a direction.",
        ),
    ],
)
def test_an_outcome_in_a_sentence(outcome: Outcome, sentence: str) -> None:
    assert outcome_sentence(outcome) == sentence
