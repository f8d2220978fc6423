"""Can the loop overfit a single batch? The script's own loop, fed the data of one step over and over.

Measures: `start`, `expected` (the loss of a guess), `floor` (the lowest loss possible on this batch), `constant` (the
loss of answering every example alike), `apart` (the floor if no two inputs were equal), `conflicting` (how many of the
`examples` have the input of another and a different target), `lowest`, `end`, `left` (the share of the way to the floor
that is left), `steps`, `frozen`, `slow` (undecided, and it only needs more steps or a higher rate), `rate_that_works`
(times the script's own), `explained_by` (codes of rules that see the reason in the same run), `place` (the line of the
backward).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.experiments import experiment, findings_in
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, NamedCurve, Status
from unstuck.interventions import Intervention
from unstuck.interventions.data import FreezeBatch
from unstuck.interventions.learning_rate import SetRate
from unstuck.interventions.no_dropout import NoDropout
from unstuck.interventions.options import NoWeightDecay
from unstuck.record.trend import Direction
from unstuck.trials.loops import Loop, loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.findings.curve import Curve
    from unstuck.record import Record
    from unstuck.record.trend import Trend
    from unstuck.trials.context import Context

STEPS = 250
STILL = 30
"""Steps without learning that show whether the data stay the same."""
FEWEST = 50
"""Steps from which a loss that does not fall says anything."""
SHARE = 0.6
"""Of the time that is left, what the runs may take."""
ONE_BATCH: tuple[Intervention, ...] = (FreezeBatch(), NoDropout(), NoWeightDecay())
FACTORS = (10.0, 0.1, 100.0)
"""Other learning rates that are tried before a loop is said to fail."""
SAME_LEVEL = 0.05
BETTER = 0.25
"""Of the way that is left, what another learning rate must take to be better."""
FEWEST_TO_READ = 20
REACHED = 0.1
"""Of the way from a guess to the floor, what may be left."""
FAR = 0.5
FALLEN = 0.25
"""Of a loss whose floor is not known, what may be left."""
LEVEL = 5.0
"""A loss levels off if its first half fell so many times as far as its second."""
NOTHING = 1e-5
"""A loss that changed by less than this share has not moved."""
SAME = 0.02
"""Two losses that differ by less than this share are one."""
MOVED = 0.1
"""A loss that changed by this share shows whether another one is in proportion to it."""


class Course(StrEnum):
    """Where the loss of one batch went."""

    PASSED = "passed"
    STUCK = "stuck"
    FALLING = "falling"
    BROKEN = "broken"
    """NaN, infinite or rising."""
    BELOW = "below"
    """Lower than its floor, so it does not measure what it should."""
    BETWEEN = "between"
    UNREADABLE = "nothing"
    """Too few losses."""


@experiment(
    "can the loop overfit a single batch?",
    """Feed the script's own loop one and the same batch, with dropout and weight decay
off. A loop that can learn drives that loss to its floor; if it does not, something between the data
and the weights is broken.""",
    order=1,
    runs_if_longer=1,
    shows_symptoms=True,
)
def overfit(context: Context, changes: Sequence[Intervention] = (), wanted: int = STEPS) -> Experiment:
    """Feed the loop one batch, with dropout and weight decay off, and see whether its loss reaches the floor.

    Raises `NoTime`.
    """
    began = time.monotonic()
    steps = max(context.steps_for(1, SHARE, wanted, least=FEWEST), _steps(context, 1, wanted))
    context.tell("overfitting one batch")
    outcome = context.run([Variant("overfit", (*changes, *ONE_BATCH))], steps)[0]
    record, loop = outcome.record_or_none(), loop_of(outcome)
    reading = read(loop.curve, _levels(outcome, loop, record))
    if record is None or reading.course is Course.UNREADABLE:
        return _undecided(_nothing_read(outcome, loop))
    passed = reading.course is Course.PASSED
    others = [] if passed else _other_rates(context, changes, reading, wanted)
    frozen = is_frozen(outcome) or (not passed and _is_constant_untrained(context, changes))
    return _Answer(outcome, loop, record, reading, others, frozen).experiment(time.monotonic() - began)


def _levels(outcome: Outcome, loop: Loop, record: Record | None) -> Levels:
    levels = levels_of(outcome.notes, loop.curve)
    expected = expected_start(record) if record is not None else None
    return msgspec.structs.replace(levels, guess=expected[0]) if expected else levels


def _steps(context: Context, runs: int, wanted: int) -> int:
    """How many steps there is time for: more than the script takes by itself, since a frozen loader has no end."""
    steps = context.plan(runs, SHARE, wanted)
    available, jobs = context.available_steps, context.runner.jobs
    if available is None or not 0 < available <= steps < wanted:
        return steps
    rounds = math.ceil(runs / jobs) * math.ceil(wanted / available)
    return wanted if context.plan(rounds * jobs, SHARE, wanted) >= available else steps


def _other_rates(
    context: Context, changes: Sequence[Intervention], reading: Reading, wanted: int
) -> list[tuple[float, Curve, Reading]]:
    """The same with other learning rates: a loop that learns with one of them is not wrongly wired."""
    steps = _steps(context, len(FACTORS), wanted)
    if not steps:
        return []
    context.tell("overfitting one batch with other learning rates")
    variants = [Variant(f"overfit-rate-{factor:g}", (*changes, *ONE_BATCH, SetRate(factor))) for factor in FACTORS]
    outcomes = context.run(variants, steps)
    # The levels are those of the batch, whatever the rate; a run that ends at another scale has none of its own.
    return [
        (factor, loop.curve, read(loop.curve, reading.levels))
        for factor, loop in zip(FACTORS, map(loop_of, outcomes), strict=True)
        if loop.curve.losses
    ]


def _is_constant_untrained(context: Context, changes: Sequence[Intervention]) -> bool:
    """Does the loss stay the same as long as nothing is learned? Then so does everything that it is computed from."""
    if not context.plan(1, SHARE, STILL):
        return False
    context.tell("making sure that the batch stays the same")
    still = Variant("overfit-still", (*changes, *ONE_BATCH, SetRate(0.0)))
    outcome = context.run([still], STILL)[0]
    losses = loop_of(outcome).curve.finite[2:]
    replaced = (outcome.notes.get("frozen") or {}).get("replaced")  # else these data differ only as the model learns
    return bool(replaced) and len(losses) >= STILL // 2 and max(losses) - min(losses) <= 1e-4 * abs(losses[0])


class _Answer:
    """Puts into words what the runs showed."""

    def __init__(
        self,
        outcome: Outcome,
        loop: Loop,
        record: Record,
        reading: Reading,
        others: Sequence[tuple[float, Curve, Reading]],
        frozen: bool,
    ) -> None:
        self._outcome, self._loop, self._record, self._reading = outcome, loop, record, reading
        self._others = list(others)
        self._works = next((factor for factor, _, other in others if other.course is Course.PASSED), None)
        self._frozen = frozen
        self._caveats = _doubts(record, loop, reading, frozen)

    def experiment(self, seconds: float) -> Experiment:
        done = self._explained((), seconds)
        symptoms = {finding.code for finding in findings_in(done)}
        return self._explained(explained_by(self._record, symptoms), seconds) if symptoms else done

    def _explained(self, explained: Sequence[tuple[str, str]], seconds: float) -> Experiment:
        verdict = self._verdict()
        curves = [NamedCurve("one batch", self._loop.curve)]
        curves += [NamedCurve(f"rate x {factor:g}", curve) for factor, curve, _ in self._others]
        return Experiment(
            name="overfit",
            verdict=verdict,
            sentence=self._sentence(verdict, explained),
            method=self._method(),
            curves=tuple(curves),
            measures=self._measures(verdict, [code for code, _ in explained]),
            caveats=tuple(self._caveats),
            seconds=seconds,
        )

    def _verdict(self) -> ExperimentVerdict:
        reading = self._reading
        if reading.course is Course.PASSED:
            return ExperimentVerdict.PASSED
        if reading.end is None and self._works is None:
            return ExperimentVerdict.UNDECIDED  # what breaks at once at every rate has a rule of its own
        if reading.course not in (Course.STUCK, Course.BROKEN) and not (
            reading.course is Course.FALLING and self._never_works()
        ):
            return ExperimentVerdict.UNDECIDED
        too_slow = (self._works or 0.0) > 1 or any(factor > 1 for factor, _ in self._better())
        is_doubtful = too_slow or (self._caveats and reading.moved)
        return ExperimentVerdict.UNDECIDED if is_doubtful else ExperimentVerdict.FAILED

    def _better(self) -> list[tuple[float, float]]:
        """Rates, times the script's own, at which the loss ends clearly lower, and where; the lowest first."""
        end, floor = self._reading.end, self._reading.levels.floor or 0.0
        if end is None:
            return []
        ends = [(factor, other.end) for factor, _, other in self._others if other.end is not None]
        return sorted(((f, e) for f, e in ends if e < end - BETTER * (end - floor)), key=lambda pair: pair[1])

    def _never_works(self) -> bool:
        """Do two higher rates lead to the same loss, far above the floor? Then the rate is not what is in the way."""
        ends = [other for factor, _, other in self._others if factor > 1 and other.levels_off and other.end is not None]
        if len(ends) < 2 or any(other.left is None or other.left < FAR for _, _, other in self._others):
            return False
        low, high = min(other.end or 0.0 for other in ends), max(other.end or 0.0 for other in ends)
        return high - low < SAME_LEVEL * (high - (self._reading.levels.floor or 0.0))

    def _sentence(self, verdict: ExperimentVerdict, explained: Sequence[tuple[str, str]]) -> str:
        reading = self._reading
        floor = reading.levels.floor
        if verdict is ExperimentVerdict.PASSED:
            reach = "its floor is not known" if floor is None else f"its floor is {_in_digits(floor)}"
            known = f", a guess costs {_in_digits(reading.levels.guess)}" if reading.levels.guess is not None else ""
            return (
                f"The loop can overfit one batch: the loss {_course(reading)}{known}, and "
                f"{reach}{_why_floor(reading.levels)}; dropout and weight decay were off, other batches were not tried."
            )
        parts = [f"Fed one batch, the loss {_course(reading)}{_why_far(reading)}"]
        if self._works is not None:
            parts.append(f"with {self._works:g} times its learning rate it comes to the floor")
        elif reading.course is Course.FALLING and verdict is ExperimentVerdict.FAILED:
            ends = [(factor, other.end) for factor, _, other in self._others if factor > 1 and other.levels_off]
            levels = " and ".join(f"{_in_digits(end)} with {factor:g}" for factor, end in ends)
            parts.append(f"it levels off at {levels} times the learning rate")
        elif better := self._better():
            parts.append(f"with {better[0][0]:g} times its learning rate it comes down to {_in_digits(better[0][1])}")
        elif self._others and verdict is ExperimentVerdict.FAILED:
            rates = ", ".join(f"{factor:g}" for factor, _, _ in sorted(self._others, key=lambda other: other[0]))
            parts.append(f"it does no better with {rates} times the learning rate")
        if reading.course is Course.FALLING and verdict is ExperimentVerdict.UNDECIDED and self._works is None:
            parts.append("it was still falling")
        sentence = "; ".join(parts) + "."
        return sentence + (f" {explained[0][1]} ({explained[0][0]})" if explained else "")

    def _method(self) -> str:
        steps = f"the data of one step for {self._reading.steps} steps, dropout and weight decay off"
        return f"{steps}; {_way(self._outcome)}"

    def _measures(self, verdict: ExperimentVerdict, codes: Sequence[str]) -> dict[str, Measure]:
        reading, expected = self._reading, expected_start(self._record)
        return {
            "start": reading.start,
            "expected": expected[0] if expected else None,
            "floor": reading.levels.floor,
            "constant": reading.levels.constant,
            "apart": reading.levels.apart,
            "conflicting": reading.levels.conflicting,
            "examples": reading.levels.examples,
            "lowest": reading.lowest,
            "end": reading.end,
            "left": reading.left,
            "steps": reading.steps,
            "frozen": self._frozen,
            "slow": verdict is ExperimentVerdict.UNDECIDED
            and (reading.course is Course.FALLING or (self._works or 0.0) > 1 or bool(self._better())),
            "rate_that_works": self._works,
            "explained_by": ", ".join(codes),
            "place": _where(self._record),
        }


def _where(record: Record) -> str:
    """The line that computes the gradients of the loop."""
    from unstuck.events import Backward

    places = [str(backward.place) for backward in record.of(Backward) if backward.place is not None]
    return max(places, key=places.count) if places else ""


def _course(reading: Reading) -> str:
    steps = f"{reading.steps} step{'s' * (reading.steps != 1)}"
    if reading.end is None:
        return f"became NaN or infinite after {steps}"
    return f"went from {_in_digits(reading.start)} to {_in_digits(reading.end)} in {steps}"


def _why_far(reading: Reading) -> str:
    levels = reading.levels
    if reading.course is Course.BELOW:
        return f", below {_in_digits(levels.floor)}, which no such loss can pass: it does not measure what it should"
    if reading.end is None:
        return ""
    if not reading.moved:
        return " and did not move at all"
    if levels.constant and reading.end is not None and reading.end > 0.97 * levels.constant > (levels.floor or 0.0):
        return f", no lower than that of one answer for every example ({_in_digits(levels.constant)})"
    return "" if levels.floor is None else f", and its floor is {_in_digits(levels.floor)}"


def _why_floor(levels: Levels) -> str:
    if not levels.conflicting or (levels.floor or 0.0) <= (levels.apart or 0.0):
        return ""
    return (
        f", since {levels.conflicting} of {levels.examples} examples have the input of another and a different target"
    )


def explained_by(record: Record, symptoms: set[str]) -> list[tuple[str, str]]:
    """Rules that see, in the same run, a reason for the symptoms: their codes and messages, most likely first."""
    from unstuck.judge import judge
    from unstuck.rule import find_rule

    found = []
    for diagnosis in judge(record=record).diagnoses:
        rule = find_rule(diagnosis.lead.code)
        if rule is not None and not symptoms.isdisjoint(rule.explains):
            found.append((rule.code, diagnosis.lead.message))
    return found


def is_frozen(outcome: Outcome) -> bool:
    """Were the model and the losses given the same data in every step, without our replacing them at the last moment?

    Where we had to, the script may also use data that we do not see, such as actions that select an output.
    """
    frozen = outcome.notes.get("frozen") or {}
    return bool(frozen.get("calls")) and not frozen.get("replaced")


def _way(outcome: Outcome) -> str:
    frozen = outcome.notes.get("frozen") or {}
    if not frozen.get("calls"):
        return "whether the data stayed the same could not be seen"
    if frozen["replaced"]:
        return "what the model and the losses were given was replaced by what they got in the second step"
    if outcome.notes.get("loader"):
        return "the DataLoader handed out its first batch every time"
    return "what the script draws for a step was drawn again in every step"


def _doubts(record: Record, loop: Loop, reading: Reading, frozen: bool) -> list[str]:
    """Why a failure would not be certain."""
    doubts = []
    if not frozen:
        doubts.append("Some of the data that the loop works on may have changed from step to step.")
    if loop.has_several_losses:
        doubts.append("Several optimizers step, and each may have a loss of its own.")
    if loop.number:
        doubts.append(f"This is training number {loop.number + 1} of the script; the data of the first were frozen.")
    parameters = _trainable(record, loop)
    if reading.levels.targets and 0 < parameters < reading.levels.targets:
        doubts.append(f"The model has {parameters} numbers to train for {reading.levels.targets} targets.")
    if reading.levels.floor is None and reading.end is not None and reading.end < 0:
        doubts.append("The loss is negative, so its floor is not known.")
    return doubts


def _trainable(record: Record, loop: Loop) -> int:
    from unstuck.events import OptimizerSeen

    own = [seen for seen in record.of(OptimizerSeen) if not loop.optimizers or seen.optimizer in loop.optimizers]
    sizes = {fact.key: fact.size for seen in own for fact in seen.parameters if fact.trainable}
    return sum(sizes.values())


def _nothing_read(outcome: Outcome, loop: Loop) -> str:
    taken = len(loop.curve.losses)
    if outcome.status is Status.FAILED:
        return "The script could not be run on one batch."
    if outcome.status is Status.CRASHED:
        return f"The script failed after {taken} steps on one batch: {outcome.last_line}"
    if outcome.status is Status.KILLED:
        return f"The script took {taken} steps in the time it had, too few to tell."
    if not taken:
        return "No optimizer step with a loss was seen."
    return f"The script ended after {taken} steps, too few to tell."


def _undecided(sentence: str) -> Experiment:
    return Experiment(name="overfit", verdict=ExperimentVerdict.UNDECIDED, sentence=sentence, method="one batch")


def _in_digits(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


class Levels(msgspec.Struct, frozen=True):
    """Levels of the loss that is back-propagated; None where they are not known."""

    floor: float | None = None
    constant: float | None = None
    targets: int | None = None
    """How many numbers or labels the losses were given to fit."""
    guess: float | None = None
    """What a model costs that knows nothing."""
    apart: float | None = None
    """The floor if no two inputs were equal."""
    conflicting: int = 0
    """Examples with the input of another and a different target; ids are not counted, which are often equal."""
    examples: int = 0


def levels_of(notes: dict[str, Any], curve: Curve) -> Levels:
    """From the loss calls of the frozen batch, if the loss of the loop is their sum or in proportion to it."""
    calls = notes.get("goals") or {}
    goals: Sequence[dict[str, Any]] = calls.get("first") or ()
    if not goals:
        return Levels()
    targets = max(int(goal["targets"]) for goal in goals)
    scale = _scale(calls, curve)
    if scale is None:
        return Levels(targets=targets)
    floor, constant, apart = (
        _times(_mean([goal.get(level) for goal in goals]), scale) for level in ("floor", "constant", "apart")
    )
    conflicting = max(goal.get("conflicting", 0) for goal in goals) if calls.get("measured") else 0
    examples = max(goal.get("examples", 0) for goal in goals)
    return Levels(floor, constant, targets, apart=apart, conflicting=conflicting, examples=examples)


def expected_start(record: Record) -> tuple[float, str] | None:
    """What a model that knows nothing costs, and how that comes about, for a run with one kind of loss."""
    from unstuck.events import LossCall
    from unstuck.rules.recipe.init_loss import LOSSES, guess_of
    from unstuck.rules.shared import losses

    if not losses.starts_fresh(record):
        return None
    first = [call for call in record.of(LossCall) if call.step == 0 and call.output_requires_grad]
    groups = losses.trained(first, LOSSES)
    if len(groups) != 1 or len(groups[0]) != len(first) or any(c.weighted or c.reduction != "mean" for c in first):
        return None
    guess, words = guess_of(first[0])
    return (guess, words) if guess > 0 else None


def _scale(calls: dict[str, Any], curve: Curve) -> float | None:
    """The loss of the loop as a multiple of the mean of its loss calls, where it is one all the time."""
    whole = dict(zip(curve.steps, curve.losses, strict=True))
    first, last = [goal["value"] for goal in calls["first"]], calls["last"]
    before, after = _mean(first), _mean(last) if len(last) == len(first) else None
    early, late = _ratio(whole.get(calls["first_step"]), before), _ratio(whole.get(calls["last_step"]), after)
    if early is None or before is None:
        return None
    for plain in (1.0, float(len(first))):
        if abs(early - plain) < SAME * plain and (late is None or abs(late - plain) < MOVED * plain):
            return plain
    moved = after is not None and abs(after - before) > MOVED * abs(before)
    return early if moved and late is not None and abs(late - early) < SAME * abs(early) else None


def _ratio(loss: float | None, parts: float | None) -> float | None:
    return loss / parts if loss is not None and parts is not None and abs(parts) > 1e-9 else None


def _times(level: float | None, scale: float) -> float | None:
    return None if level is None else level * scale


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one run on one batch showed."""

    course: Course
    start: float | None = None
    end: float | None = None
    lowest: float | None = None
    left: float | None = None
    steps: int = 0
    moved: bool = True
    levels_off: bool = False
    """Has it fallen, and almost all of that in the first half?"""
    levels: Levels = Levels()


def read(curve: Curve, levels: Levels) -> Reading:
    """Where a loss went on one batch."""
    values = curve.finite
    if len(values) < FEWEST_TO_READ:
        return Reading(course=Course.BROKEN if curve.is_broken else Course.UNREADABLE, steps=len(values), levels=levels)
    tail = sorted(values[-max(5, len(values) // 10) :])
    end = tail[len(tail) // 2]
    left = _left(values[0], end, levels)
    spread = max(values) - min(values)
    return Reading(
        course=Course.BROKEN if curve.is_broken else _course_of(values, end, left, levels),
        start=values[0],
        end=end,
        lowest=min(values),
        left=left,
        steps=len(values),
        moved=spread > NOTHING * max(abs(values[0]), 1e-12),
        levels_off=_levels_off(values, end),
        levels=levels,
    )


def _levels_off(values: Sequence[float], end: float) -> bool:
    middle = values[len(values) // 2]
    return values[0] - middle > max(0.0, LEVEL * (middle - end)) and values[0] - end > 0.1 * abs(values[0])


def _left(start: float, end: float, levels: Levels) -> float | None:
    """The share of the way to the floor that is left, from the loss of the best constant answer if that is lower."""
    if levels.floor is None:
        return None
    begin = start if levels.constant is None else min(start, levels.constant)
    # A first loss may be absurd: the way down from there says nothing of what was learned.
    high = start if levels.guess is None else min(start, levels.guess)
    if begin - levels.floor < 0.05 * (high - levels.floor):
        begin = start  # a constant answer is all there is to learn
    way = begin - levels.floor
    return (end - levels.floor) / way if way > 1e-9 else 0.0


def _course_of(values: Sequence[float], end: float, left: float | None, levels: Levels) -> Course:
    from unstuck.record.trend import trend_of

    late = trend_of(values[len(values) // 2 :])
    whole = trend_of(values)
    falls = late.falls or _creeps(values[len(values) // 2 :])
    if left is None:
        return _course_without_floor(values[0], end, whole, falls)
    if left < -0.05 and end < (levels.floor or 0.0) - 1e-3:
        return Course.BELOW
    is_near = end <= (1 + REACHED) * (levels.floor or 0.0) and left <= FAR
    if left <= REACHED or is_near or (left <= FAR and falls and _arrives(values, end, left, levels.floor or 0.0)):
        return Course.PASSED
    if whole.word in (Direction.RISING, Direction.SPIKING) and left > 1:
        return Course.BROKEN
    if falls:
        return Course.FALLING
    return Course.STUCK if left > FAR and late.word in (Direction.FLAT, Direction.RISING) else Course.BETWEEN


def _arrives(values: Sequence[float], end: float, left: float, floor: float) -> bool:
    """Would as many steps again bring it to the floor, at the pace of the second half? One that only creeps does not
    pass by creeping."""
    tail = max(5, len(values) // 10)
    middle = sorted(values[(len(values) - tail) // 2 :][:tail])[tail // 2]
    kept = (end - floor) / (middle - floor) if middle > floor else 1.0
    return left * kept**2 <= REACHED


def _course_without_floor(start: float, end: float, whole: Trend, falls: bool) -> Course:
    if start > 0 and 0 <= end <= FALLEN * start:
        return Course.PASSED
    if falls:
        return Course.FALLING
    return Course.STUCK if whole.word == Direction.FLAT else Course.BETWEEN


def _creeps(values: Sequence[float]) -> bool:
    """Does it fall at almost every step, however little? On one batch no noise hides it."""
    downs = sum(after < before for before, after in itertools.pairwise(values))
    return downs >= 0.8 * (len(values) - 1) and values[-1] < values[0]
