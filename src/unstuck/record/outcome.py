"""What a training achieved: where its loss began and ended, measured against a guess, and a word for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import (
    Evaluated,
    Forward,
    Gauges,
    HandStep,
    LoaderSeen,
    LossesBetween,
    NonFinite,
    OptimizerStep,
    Place,
    Scored,
    StateLoaded,
)
from unstuck.events.losses import VALUE_LOSSES
from unstuck.record import goals
from unstuck.record.returns import Course, Returns, returns_of
from unstuck.record.trainings import players
from unstuck.record.trend import Direction, Trend, trend_of

if TYPE_CHECKING:
    from unstuck.record import Record

FEWEST = 50
"""Steps: a model that has just begun answers like a guess, too."""
CERTAIN = 4.0
"""A difference must exceed its own standard error this many times."""
NOTICEABLE = 0.02
"""A loss beats a guess by more than this share of it, or only just."""
UNSURE = 0.05
"""An end whose standard error exceeds this share of the guess is not compared with it."""
LITTLE = 0.1
"""A level loss that is below a guess by less than this share of it has learned next to nothing."""
FAR = 0.5
"""The share of the way from a guess to perfection that is learning whatever else is measured."""
NEARLY_ALL = 0.8
"""The share of that way from which on answers are right though their loss is that of a guess: confidence is missing."""
NEAR = 2.0
"""A loss that still falls and is this many times that of a guess, or less, is on its way there."""
ROSE = 1.5
"""A loss that ended this many times above its start has diverged; one that rose less may be noise."""
LONG = 100
SAME = 0.01
FEWEST_EVALUATED = 50
FEWEST_EVALUATIONS = 3
IMPROVED = 0.8
"""Of its first value: an evaluation that ends below has become better."""
BLOCKS = 40
"""Parts of a run whose means show whether its loss rises in jumps."""
JUMP = 1.3
REGRESSIONS = (*VALUE_LOSSES, "gaussian_nll_loss")
LATE = 0.8
"""The share of a run after which a loss must still be computed to count for what the run achieved."""
LARGEST = 1e150
"""A loss above this is as good as infinite: its square is."""
FEWEST_ANSWERS = 30
"""A share of fewer answers than this says nothing."""


class Achieved(StrEnum):
    """What a training achieved, in a word."""

    LEARNS = "learns"
    SLOWLY = "learns slowly"
    BARELY = "barely beats a guess"
    """It is a little better than a guess, and has levelled off there."""
    GUESSES = "does not beat a guess"
    STAYS = "does not learn"
    """It stays where it began. What a guess would cost is not known."""
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
        return self in (Achieved.GUESSES, Achieved.STAYS, Achieved.DIVERGES)


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
    term: str = ""
    """Where the loss is more than one call of a loss function: the one that `cost` and `cost_guess` are about."""
    cost: float | None = None
    """What that call costs at the end, for one target on average."""
    cost_guess: float | None = None
    """What the best constant answer costs there."""
    returns: Returns | None = None
    """In reinforcement learning what the agent earns per episode, where that decides the word."""

    @property
    def beats_guess_by(self) -> float | None:
        """How far the loss is below that of a guess, as a share of the latter."""
        last, guess = (self.cost, self.cost_guess) if self.term else (self.last, self.guess)
        return None if last is None or guess is None or guess <= 0 else 1 - last / guess


def outcome_of(record: Record, *, training: str = "", moving: bool | None = None) -> Outcome | None:
    """What the training in this record achieved; None if it shows no loss, or losses that compete.

    `moving`: is the goal of the loss known to move with the model? None: see for yourself.
    """
    values = losses_of(record)
    if not values:
        return None
    if goals.is_maximized(record):
        return _of_maximized(record, values, training)
    trend = goals.with_moving_goal(trend_of(values), record)
    stepping = {step.optimizer for step in record.of(OptimizerStep)}
    playing = players(record)
    # Losses without the name of an optimizer may belong to any of several.
    competing = len(playing) > 1 or (len(stepping) > 1 and "" in playing)
    if moving is None:
        moving = competing or goals.may_rise(record)
    judged = _Judged(record, values, trend)
    word = judged.word_of_moving() if moving else judged.word()
    if word in (Achieved.LEARNS, Achieved.SLOWLY) and judged.memorizes():
        word = Achieved.MEMORIZES
    returns = returns_of(record)
    if returns is not None and trend.word != Direction.NON_FINITE:
        # An agent's loss shows nothing about what it earns, whichever way it goes.
        word = _BY_RETURNS[returns.course]
        word = Achieved.UNCLEAR if word.is_trouble and _begins_trained(record) else word
        return msgspec.structs.replace(judged.outcome(word, training), returns=returns)
    if competing and word is Achieved.UNCLEAR:
        return _standstill(record, playing, training)
    return judged.outcome(word, training)


def _of_maximized(record: Record, values: Sequence[float], training: str) -> Outcome:
    """What is to rise is judged as its negative, which is to fall."""
    negative = [-value for value in values]
    judged = _Judged(record, negative, trend_of(negative))
    found = judged.outcome(judged.word(), training)
    ends = {name: None if value is None else -value for name, value in (("first", found.first), ("last", found.last))}
    return msgspec.structs.replace(found, **ends)


def _standstill(record: Record, playing: Mapping[str, Sequence[tuple[int, float]]], training: str) -> Outcome | None:
    """Losses that compete say nothing by where they go. If none of them goes anywhere, from the first step to the last,
    nobody learns."""
    each = [[value for _, value in pairs] for pairs in playing.values()]
    if not each or min(map(len, each)) < LONG or _begins_trained(record) or record.ended is None:
        return None
    if not all(map(_stands_still, each)):
        return None
    return _Judged(record, each[0], trend_of(each[0])).outcome(Achieved.STAYS, training)


def _stands_still(values: Sequence[float]) -> bool:
    """Is every tenth of the run where the first is?"""
    size = len(values) // 10
    means = [_mean(values[at * size :][:size]) for at in range(10)]
    unit = max(abs(mean) for mean in means)
    return all(math.isfinite(mean) for mean in means) and max(means) - min(means) <= 2 * SAME * unit


def losses_of(record: Record) -> list[float]:
    """The loss by step. A record keeps no non-finite values, only that there were some and when."""
    gauges = list(record.of(Gauges))
    if len(gauges) > 1 and not any(gauge.step for gauge in gauges) and not any(record.of(HandStep)):
        return []  # many losses, and no step between them: nothing was trained
    values = [value for _, value in record.losses]
    last = max((step for step, _ in record.losses), default=0)
    unseen = any(gauge.loss is None for gauge in gauges) or any(
        None in told.values for told in record.of(LossesBetween)
    )
    broken = unseen and any(event.step >= last for event in record.of(NonFinite))
    return [*values, math.nan] if broken else values


class _Level(msgspec.Struct, frozen=True):
    """The end of a series: its mean, the standard error of that, and how it still moves."""

    mean: float
    error: float
    fall: float
    """How much lower it is than a quarter of the run earlier, if it goes on like that."""

    @property
    def falls(self) -> bool:
        return self.fall > max(CERTAIN * math.sqrt(2) * self.error, NOTICEABLE * abs(self.mean))

    def still_falls(self, first: float | None) -> bool:
        """Does it go on as before, however slowly: with a fair part of the whole way in its last quarter?"""
        way = abs((self.mean if first is None else first) - self.mean)
        return self.fall > max(CERTAIN * math.sqrt(2) * self.error, LITTLE * way)


def _end_of(values: Sequence[float], size: int) -> _Level | None:
    if len(values) < 3:
        return None
    late = values[-max(3, size) :]
    mean = _mean(late)
    # From one value to the next, so that a trend within the end is not taken for noise.
    changes = [after - before for before, after in itertools.pairwise(late)]
    error = math.hypot(*changes) / math.sqrt(2 * len(changes) * len(late))
    quarter = max(3, len(values) // 4)
    now, before = values[-quarter:], values[-2 * quarter : -quarter]
    half = len(now) // 2
    # Both from quarter to quarter and within the last one: after a spike only the first is true.
    fall = min(_mean(before) - _mean(now), 2 * (_mean(now[:half]) - _mean(now[half:]))) if before and half else 0.0
    return _Level(mean, error, fall)


def _falls_between_jumps(values: Sequence[float]) -> bool:
    """Does the loss rise in a few jumps, and fall for most of the time between them? It does where data get harder."""
    size = len(values) // BLOCKS
    if size < 2:
        return False
    blocks = [_mean(values[at * size :][:size]) for at in range(BLOCKS)]
    starts = [0, *(at for at in range(1, BLOCKS) if blocks[at] > JUMP * blocks[at - 1] > 0), BLOCKS]
    parts = [blocks[begin:end] for begin, end in itertools.pairwise(starts)]
    falling = sum(len(part) for part in parts if len(part) >= 3 and part[-1] < (1 - LITTLE) * part[0])
    return 2 < len(starts) <= BLOCKS // 4 and falling >= NEARLY_ALL * BLOCKS


def _mean(values: Sequence[float]) -> float:
    """Not the sum first: in double precision a loss that explodes gets so large that its sum is not a number."""
    return math.fsum(value / len(values) for value in values)


class _Term:
    """One loss function at one line: what its answers cost and were worth, by step."""

    def __init__(self, scores: Sequence[Scored]) -> None:
        self.loss = scores[-1].loss
        self.labels = scores[-1].labels
        self.last_step = scores[-1].step
        self.costs = [(score.step, score.cost) for score in scores if score.cost is not None]
        guesses = [score.guess for score in scores if score.guess is not None]
        # A negative cross-entropy was not given what it expects, and compares with nothing.
        odd = self.loss != "gaussian_nll_loss" and any(cost < -1e-6 for _, cost in self.costs)
        self.guess = guesses[-1] if guesses and not odd else None
        self.guess_right = next((s.guess_right for s in reversed(scores) if s.guess_right is not None), None)
        # A fifth of the steps, so that few calls late in a long run do not speak with those of its start.
        begin = 0.8 * scores[-1].step
        late = [score for score in scores if score.step >= begin and score.right is not None]
        self.answered = sum(score.labels for score in late)
        hits = sum((score.right or 0.0) * score.labels for score in late)
        self.right = hits / self.answered if self.answered >= FEWEST_ANSWERS else None
        few = sum(step >= begin for step, _ in self.costs)
        self.end = _end_of([cost for _, cost in self.costs], max(5, few))

    @property
    def chance_error(self) -> float:
        """Standard error of the share that is right, for a guess."""
        share = self.guess_right or 0.5
        return math.sqrt(share * (1 - share) / max(1, self.answered))

    @property
    def better(self) -> float | None:
        """How far the answers are from a guess, as a share of the way to all being right; None if that is unsure."""
        if self.right is None or self.guess_right is None or self.guess_right >= 1:
            return None
        return (self.right - self.guess_right) / (1 - self.guess_right)

    @property
    def is_right_beyond_chance(self) -> bool:
        gain = None if self.right is None or self.guess_right is None else self.right - self.guess_right
        return gain is not None and gain > CERTAIN * self.chance_error and (self.better or 0.0) > 0.1

    @property
    def is_at_chance(self) -> bool:
        """Are its answers surely not better than a guess?"""
        return self.better is not None and self.chance_error < UNSURE and not self.is_right_beyond_chance


class _Judged:
    """The losses of one training next to what is known of a guess."""

    def __init__(self, record: Record, values: Sequence[float], trend: Trend) -> None:
        self._record = record
        self._trend = trend
        self._finite = [value for value in values if abs(value) < LARGEST]
        self._pass = _steps_of_a_pass(record)
        third = len(self._finite) // 3
        size = max(3, len(self._finite) // 10, min(max(10, self._pass), third))
        self._end = _end_of(self._finite, size)
        groups: dict[tuple[Place | None, str], list[Scored]] = {}
        for score in record.of(Scored):
            groups.setdefault((score.place, score.loss), []).append(score)
        # A loss that was computed only early belongs to something that is over, such as a first try of one batch.
        latest = max((scores[-1].step for scores in groups.values()), default=0)
        newest = max(groups.values(), key=lambda scores: scores[-1].step, default=[])
        # Where few windows are looked at, the newest one shows that the others are over by beginning after them.
        begin = newest[0].step if len(newest) >= FEWEST_EVALUATIONS else 0
        late = [scores for scores in groups.values() if scores[-1].step >= max(LATE * latest, begin)]
        self._terms = sorted(map(_Term, late), key=lambda term: -len(term.costs))
        self._scale = self._scale_of(self._terms[0]) if self._terms else None
        self._evaluations = [
            e for e in record.of(Evaluated) if e.value is not None or e.accuracy is not None or e.explained is not None
        ]

    def _scale_of(self, term: _Term) -> float | None:
        """The loss of the loop as a multiple of what the call costs, where it is one all the time."""
        whole = dict(self._record.losses)
        by_step: dict[int, list[float]] = {}
        for step, cost in term.costs:
            by_step.setdefault(step, []).append(cost)
        parts = [(whole[step], _mean(costs)) for step, costs in by_step.items() if step in whole]
        ratios = sorted(loss / cost for loss, cost in parts if abs(cost) > 1e-9)
        if len(ratios) < 3:
            return None
        middle = ratios[len(ratios) // 2]
        alike = sum(abs(ratio - middle) <= SAME * abs(middle) for ratio in ratios)
        return middle if middle > 0 and alike >= 0.9 * len(ratios) else None

    def word_of_moving(self) -> Achieved:
        """A loss whose goal moves shows only that it broke, or that its answers are right."""
        if self._trend.word == Direction.NON_FINITE:
            return Achieved.DIVERGES
        known = [self._word_of(term) for term in self._terms if term.better is not None]
        return Achieved.LEARNS if known and all(word is Achieved.LEARNS for word in known) else Achieved.UNCLEAR

    def word(self) -> Achieved:
        """Against a guess where one is known, else from where the loss went."""
        trend = self._trend
        if trend.word == Direction.NON_FINITE or self._has_diverged():
            return Achieved.DIVERGES
        found = [word for word in map(self._word_of, self._terms) if word is not None]
        if found:
            # One part of a loss that learns is learning: another may be a constraint.
            return min(found, key=_ORDER.index)
        return self._word_of_trend()

    def _has_diverged(self) -> bool:
        first, end = self._trend.first, self._end
        if first is None or end is None or first <= 0 or self._trend.word != Direction.RISING:
            return False
        return end.mean > ROSE * first and not self._rises_by_design()

    def _rises_by_design(self) -> bool:
        """Does the loss rise because the task gets harder, as in a curriculum? Then it stays far below a guess, or an
        evaluation gets better meanwhile, or it falls again after each jump."""
        for term in self._terms:
            if term.guess is not None and term.end is not None and 0 <= term.end.mean < (1 - FAR) * term.guess:
                return True
        return self._evaluation_improves() or _falls_between_jumps(self._finite)

    def _evaluation_improves(self) -> bool:
        shares = [e.accuracy if e.accuracy is not None else e.explained for e in self._evaluations]
        known = [share for share in shares if share is not None]
        if len(known) >= FEWEST_EVALUATIONS:
            third = len(known) // 3
            return _mean(known[-third:]) > _mean(known[:third]) + FAR * (1 - _mean(known[:third]))
        values = [e.value for e in self._evaluations if e.value is not None]
        third = len(values) // 3
        return len(values) >= FEWEST_EVALUATIONS and 0 < _mean(values[-third:]) < FAR * _mean(values[:third])

    def _word_of(self, term: _Term) -> Achieved | None:
        """What the answers to one loss function show; None if nothing."""
        end, guess = term.end, term.guess
        if term is self._terms[0] and self._scale is not None and guess is not None and self._end is not None:
            end, guess = self._end, guess * self._scale  # the loss of every step is known, not only of some
        if guess is None or end is None:
            return self._word_by_share(term)
        unit = abs(guess) or 1.0
        gain = guess - end.mean
        if gain > max(CERTAIN * end.error, NOTICEABLE * unit):
            little = gain < LITTLE * unit and (term.better or 0.0) < LITTLE and self._trend.steps >= FEWEST
            if little and not end.still_falls(self._trend.first):
                return Achieved.BARELY
            crawls = self._trend.word == Direction.CRAWLING and gain < FAR * unit
            return Achieved.SLOWLY if crawls else Achieved.LEARNS
        if (term.better or 0.0) > NEARLY_ALL:
            return Achieved.LEARNS
        if self._trend.steps < FEWEST:
            return Achieved.UNCLEAR
        only_just = end.falls and gain > max(CERTAIN * end.error, SAME * unit)
        only_just = only_just or (gain > -0.1 * unit and term.is_right_beyond_chance)
        under_way = end.falls and end.mean < NEAR * guess and end.mean - 4 * end.fall < guess
        if only_just or under_way:
            return Achieved.SLOWLY
        if abs(gain) < CERTAIN * end.error and end.error > UNSURE * unit and not term.is_at_chance:
            return Achieved.UNCLEAR
        return Achieved.UNSTABLE if self._trend.word == Direction.SPIKING else Achieved.GUESSES

    def _word_by_share(self, term: _Term) -> Achieved | None:
        if term.better is None:
            return None
        if term.is_right_beyond_chance:
            return Achieved.SLOWLY if self._trend.word == Direction.CRAWLING else Achieved.LEARNS
        surely = term.is_at_chance and self._trend.steps >= FEWEST
        return Achieved.GUESSES if surely and not self._trend.falls else None

    def _word_of_trend(self) -> Achieved:
        trend, end = self._trend, self._end
        if trend.word == Direction.FLAT and end is not None and trend.first is not None:
            third = self._finite[: len(self._finite) // 3]
            start = _mean(third) if third else trend.first
            unit = max(abs(start), abs(end.mean))
            begun = trend.steps >= LONG and not any(e.matched and e.step == 0 for e in self._record.of(StateLoaded))
            stays = abs(end.mean - start) <= 2 * SAME * unit and CERTAIN * end.error <= 2 * SAME * unit
            return Achieved.STAYS if begun and stays and unit > 0 else Achieved.UNCLEAR
        return _BY_TREND.get(trend.word, Achieved.UNCLEAR)

    def memorizes(self) -> bool:
        """Is evaluation no better than a guess, or getting worse, while training is good?"""
        term = self._terms[0] if self._terms else None
        last = self._evaluations[-1] if self._evaluations else None
        if term is None or last is None:
            return False
        better, share = term.better, last.accuracy
        if better is not None and share is not None and last.examples >= FEWEST_EVALUATED:
            guess = term.guess_right or 0.0
            error = math.sqrt(guess * (1 - guess) / last.examples)
            # What training answers right would have shown in so many examples, had it carried over.
            would_show = term.is_right_beyond_chance and (term.right or 0.0) - guess > CERTAIN * error
            if (better > FAR or would_show) and share <= guess + 3 * error:
                return True
            if (share - guess) / (1 - guess) > FAR * better:
                return False
        if term.guess is None or term.end is None:
            return False
        if last.explained is not None:
            return term.end.mean < (1 - FAR) * term.guess and last.explained <= 0
        if last.value is None or last.loss != term.loss:
            return False
        first = next((e.value for e in self._evaluations if e.value is not None and e.loss == last.loss), last.value)
        if last.value < IMPROVED * first:
            return False  # evaluation gets better, too, and may be about harder examples
        return term.end.mean < (1 - FAR) * term.guess and last.value >= term.guess

    def outcome(self, word: Achieved, training: str) -> Outcome:
        """With its numbers."""
        trend, end = self._trend, self._end
        term = next(iter(self._terms), None)
        last = trend.last if end is None or trend.word == Direction.NON_FINITE else end.mean
        found = Outcome(word=word, training=training, steps=trend.steps, first=trend.first, last=last, trend=trend)
        numbers: dict[str, object] = {}
        if term is not None:
            regression = term.loss in REGRESSIONS
            if self._scale is not None:
                numbers["guess"] = None if term.guess is None else term.guess * self._scale
            elif term.guess is not None and term.end is not None:
                numbers.update(term=term.loss, cost=term.end.mean, cost_guess=term.guess)
            late = term.last_step >= FAR * trend.steps
            numbers.update(right=term.right if late else None, is_regression=regression)
            numbers["right_guess"] = term.guess_right if late else None
            if regression and term.guess and term.end is not None and term.loss == "mse_loss":
                cost = term.end.mean if self._scale is None or end is None else end.mean / self._scale
                numbers["right"], numbers["right_guess"] = 1 - cost / term.guess, 0.0
        if self._evaluations:
            shown = self._evaluations[-1]
            same = term is not None and shown.loss == term.loss and self._scale is not None
            numbers["evaluated"] = shown.value if same or term is None else None
            numbers["evaluated_right"] = shown.accuracy if shown.accuracy is not None else shown.explained
            if term is None and shown.accuracy is None:
                numbers["is_regression"] = shown.explained is not None
        return msgspec.structs.replace(found, **numbers)


_ORDER = (
    Achieved.LEARNS,
    Achieved.SLOWLY,
    Achieved.BARELY,
    Achieved.UNCLEAR,
    Achieved.UNSTABLE,
    Achieved.GUESSES,
)
_BY_TREND = {
    Direction.FALLING: Achieved.LEARNS,
    Direction.CRAWLING: Achieved.SLOWLY,
    Direction.SPIKING: Achieved.UNSTABLE,
}


_BY_RETURNS = {
    Course.RISES: Achieved.LEARNS,
    Course.CREEPS: Achieved.SLOWLY,
    Course.STAYS: Achieved.STAYS,
    Course.FALLS: Achieved.STAYS,
    Course.UNCLEAR: Achieved.UNCLEAR,
}


def _begins_trained(record: Record) -> bool:
    """Does a network that learns begin with weights that were loaded or trained before? A target network may be given
    those of another."""
    learning = {f.model for f in record.of(Forward) if f.grad_enabled and f.output_requires_grad is not False}
    loaded = (e.model for e in record.of(StateLoaded) if e.matched and e.step == 0 and not e.own)
    return record.continues or not learning.isdisjoint(loaded)


def _steps_of_a_pass(record: Record) -> int:
    """How many batches the loader that is trained on gives; 0 if that is not known."""
    trained = [loader for loader in record.of(LoaderSeen) if loader.trained and loader.length and loader.batch_size]
    return max((-(-(one.length or 0) // (one.batch_size or 1)) for one in trained), default=0)
