"""What each training achieved, in a sentence with its own numbers."""

from __future__ import annotations

from unstuck.findings.verdict import Verdict
from unstuck.record.outcome import Achieved, Outcome
from unstuck.record.returns import Course, Returns
from unstuck.record.trend import Direction, Trend

MANY = 100
"""With this many steps a loss without a direction is too noisy, not too short."""
STUCK = (Direction.FLAT, Direction.CRAWLING, Direction.RISING, Direction.SPIKING, Direction.NON_FINITE)
PREDICATES = {Achieved.UNSTABLE: "is unstable", Achieved.UNCLEAR: "is unclear"}
"""After the name of a training; the other words can follow it as they are."""
CONSTANT = "always answering the same"


def outcome_sentences(verdict: Verdict) -> list[str]:
    """One for each training; of a verdict that knows only the direction of a loss, that."""
    if verdict.outcomes:
        return [outcome_sentence(outcome) for outcome in verdict.outcomes]
    return [trend_sentence(verdict.trend)] if verdict.trend is not None and verdict.trend.steps else []


def trouble(verdict: Verdict) -> str:
    """Completes "No cause found: ..." where the run needs one; empty where it does not."""
    if verdict.outcomes:
        bad = [outcome for outcome in verdict.outcomes if outcome.word not in (Achieved.LEARNS, Achieved.UNCLEAR)]
        bad.sort(key=lambda outcome: not outcome.word.is_trouble)
        return _subject(bad[0]) if bad else ""
    return f"the loss is {verdict.trend.word}" if verdict.trend and verdict.trend.word in STUCK else ""


def _subject(outcome: Outcome) -> str:
    return f"{outcome.training or 'the training'} {_word(outcome)}"


def _word(outcome: Outcome) -> str:
    """A loss a hair below that of a guess is not said to be above it."""
    is_below = outcome.word is Achieved.GUESSES and (outcome.beats_guess_by or 0.0) > 0
    return "hardly beats a guess" if is_below else outcome.word.value


def outcome_sentence(outcome: Outcome) -> str:
    """`Learns: 2.3 → 0.31 in 940 steps, 91 % right (a guess: 10 %); in evaluation 88 %.`"""
    if outcome.returns is not None:
        return f"{_head(outcome)}: {_earned(outcome.returns, outcome.word)}."
    trend, directed = outcome.trend, (Direction.FLAT, Direction.FALLING, Direction.CRAWLING)
    if outcome.word is Achieved.UNCLEAR and trend is not None and not outcome.training and trend.word not in directed:
        return trend_sentence(trend)
    return f"{_head(outcome)}: {_course(outcome)}{_detail(outcome)}."


def _head(outcome: Outcome) -> str:
    word = _word(outcome)
    return f"{outcome.training} {PREDICATES.get(outcome.word, word)}" if outcome.training else word.capitalize()


def _earned(returns: Returns, word: Achieved) -> str:
    """`return per episode 21 → 187 in 240 episodes of CartPole`."""
    ends = f"{number(returns.first)} → {number(returns.last)}"
    course = f"return per episode {ends} in {count(returns.episodes, 'episode')} of {returns.environment}"
    if word is Achieved.UNCLEAR and returns.course is not Course.UNCLEAR:
        return f"{course}, but it began with trained weights"
    match returns.course:
        case Course.STAYS:
            return f"{course}; it ends no higher than it began"
        case Course.FALLS:
            return f"{course}; it ends lower than it began"
        case Course.UNCLEAR:
            return f"{course}, too few or too noisy to tell a direction"
        case _:
            return course


def _course(outcome: Outcome) -> str:
    steps = count(outcome.steps, "step")
    if outcome.trend is not None and outcome.trend.word == Direction.NON_FINITE:
        began = "" if outcome.first is None else f" (it began at {number(outcome.first)})"
        return f"the loss ended NaN or infinite{began}, {steps} on record"
    return f"{number(outcome.first)} → {number(outcome.last)} in {steps}"


def _detail(outcome: Outcome) -> str:
    match outcome.word:
        case Achieved.GUESSES:
            return _against_a_guess(outcome)
        case Achieved.MEMORIZES:
            return _memorized(outcome)
        case Achieved.UNSTABLE:
            spikes = outcome.trend.spikes if outcome.trend else 0
            return f", with {count(spikes, 'spike')}" if spikes else ""
        case Achieved.LEARNS | Achieved.SLOWLY | Achieved.BARELY:
            return _worth(outcome) + _evaluation(outcome) + _to_go(outcome)
        case Achieved.UNCLEAR:
            return "" if _has_guess(outcome) else ", and what a guess would cost is not known"
        case _:
            return ""


def _has_guess(outcome: Outcome) -> bool:
    return outcome.guess is not None or outcome.cost_guess is not None or outcome.right_guess is not None


def _worth(outcome: Outcome) -> str:
    """How much is right, or explained, next to what a guess gets."""
    if outcome.right is not None and outcome.is_regression:
        return f", {percent(outcome.right)} of the variance explained"
    if outcome.right is not None and outcome.right_guess is not None:
        return f", {percent(outcome.right)} right (a guess: {percent(outcome.right_guess)})"
    if outcome.term:
        costs = f"{number(outcome.cost)} (a guess: {number(outcome.cost_guess)})"
        return f"; its {outcome.term} ends at {costs}"
    return f" (a guess: {number(outcome.guess)})" if outcome.guess is not None else ""


def _evaluation(outcome: Outcome) -> str:
    if outcome.evaluated_right is not None:
        what = " explained" if outcome.is_regression else ""
        return f"; in evaluation {percent(outcome.evaluated_right)}{what}"
    return f"; in evaluation {number(outcome.evaluated)}" if outcome.evaluated is not None else ""


def _to_go(outcome: Outcome) -> str:
    togo = outcome.trend.runs_to_go if outcome.trend is not None and outcome.word is Achieved.SLOWLY else None
    return f"; at this rate it needs about {togo:.0f} times more steps to reach 0" if togo is not None else ""


def _against_a_guess(outcome: Outcome) -> str:
    answer = "always answering the mean" if outcome.is_regression else CONSTANT
    share = ""
    if outcome.right is not None and outcome.right_guess is not None and not outcome.is_regression:
        share = f"{percent(outcome.right)} is right (a guess: {percent(outcome.right_guess)})"
    if outcome.guess is not None:
        return f"; {answer} costs {number(outcome.guess)}" + (f", and {share}" if share else "")
    if outcome.term and outcome.cost_guess is not None:
        return f"; its {outcome.term} ends at {number(outcome.cost)}, and {answer} costs {number(outcome.cost_guess)}"
    return f"; {share}" if share else ""


def _memorized(outcome: Outcome) -> str:
    if outcome.right is not None and outcome.evaluated_right is not None and outcome.right_guess is not None:
        seen, unseen = percent(outcome.right), percent(outcome.evaluated_right)
        return f", {seen} right, but {unseen} in evaluation (a guess: {percent(outcome.right_guess)})"
    guess = f" (a guess: {number(outcome.guess)})" if outcome.guess is not None else ""
    return f", but {number(outcome.evaluated)} in evaluation{guess}"


def trend_sentence(trend: Trend) -> str:
    """Where the loss went, in its own numbers."""
    values = f"{number(trend.first)} → {number(trend.last)} over {count(trend.steps, 'step')}"
    if trend.word == Direction.NON_FINITE:
        began = "" if trend.first is None else f" (it began at {number(trend.first)})"
        return f"The loss ended non-finite{began}, {count(trend.steps, 'step')} on record."
    if trend.steps == 1 and trend.last is not None:
        return f"One loss was seen: {number(trend.last)}."
    if trend.word == Direction.TOO_SHORT:
        doubt = "too short" if trend.steps < MANY else "too noisy"
        return f"The loss went {values}: {doubt} to tell a direction."
    if trend.word == Direction.MOVING:
        return f"The loss went {values}; what it is measured against moves with the model, so it need not fall."
    if trend.runs_to_go is not None:
        rate = f"at this rate it needs about {trend.runs_to_go:.0f} times more steps"
        return f"The loss is {trend.word}: {values}; {rate} to reach 0."
    return f"The loss is {trend.word}: {values}."


def number(value: float | None) -> str:
    """Four significant digits, which is what a person compares."""
    return "unknown" if value is None else f"{value:.4g}"


def percent(share: float) -> str:
    """`91 %`, and `99.6 %` where a rounded number would say too much."""
    points = 100 * share
    return f"{points:.1f} %" if 99 <= points < 99.95 else f"{points:.0f} %"


def count(amount: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{amount:,} {what}" if amount == 1 else f"{amount:,} {what}s"
