"""Can the loop learn one batch by heart? The script's own loop, fed the data of one step again and again.

Verdicts: `passed` (the loss came to its floor, or near it and still falling), `failed` (stuck far above its floor),
`undecided` (a sentence says why; `slow` among the measures if it only needs more steps or a higher rate).
Measures: `start`, `expected` (the loss of a guess), `floor` (the lowest loss possible on this batch), `constant` (the
loss of answering every example alike), `lowest`, `end`, `left` (the share of the way to the floor that is left),
`steps`, `frozen`, `slow`, `rate_that_works` (times the script's own), `explained_by` (codes of rules that see the
reason in the same run), `place` (the line of the backward).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.experiments.shared.floors import Levels, expected_start, levels_of
from unstuck.experiments.shared.one_batch import FAR, Reading, read
from unstuck.findings.results import Experiment, Measure, NamedCurve
from unstuck.interventions import FreezeBatch, Intervention, NoDropout, NoWeightDecay, SetRate
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.record import Record
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


def overfit(context: Context, changes: Sequence[Intervention] = (), wanted: int = STEPS) -> Experiment:
    """Feed the loop one batch, with dropout and weight decay off, and see whether its loss comes to the floor.

    Raises `NoTime`.
    """
    began = time.monotonic()
    steps = max(context.steps_for(1, SHARE, wanted, least=FEWEST), _steps(context, 1, wanted))
    context.tell("overfitting one batch")
    outcome = context.run([Variant("overfit", (*changes, *ONE_BATCH))], steps)[0]
    record = _record(outcome)
    reading = read(outcome.curve, _levels(outcome, record))
    if record is None or reading.state == "nothing":
        return _undecided(_nothing_read(outcome))
    passed = reading.state == "passed"
    others = [] if passed else _other_rates(context, changes, reading, wanted)
    frozen = is_frozen(outcome) or (not passed and _stands_still(context, changes))
    return _Answer(outcome, record, reading, others, frozen).experiment(time.monotonic() - began)


def _levels(outcome: Outcome, record: Record | None) -> Levels:
    levels = levels_of(outcome.notes, outcome.curve)
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
) -> list[tuple[float, Outcome, Reading]]:
    """The same with other learning rates: a loop that learns with one of them is not wrongly wired."""
    steps = _steps(context, len(FACTORS), wanted)
    if not steps:
        return []
    context.tell("overfitting one batch with other learning rates")
    variants = [Variant(f"overfit-rate-{factor:g}", (*changes, *ONE_BATCH, SetRate(factor))) for factor in FACTORS]
    outcomes = context.run(variants, steps)
    # The levels are those of the batch, whatever the rate; a run that ends at another scale has none of its own.
    return [
        (factor, outcome, read(outcome.curve, reading.levels))
        for factor, outcome in zip(FACTORS, outcomes, strict=True)
        if outcome.curve.losses
    ]


def _stands_still(context: Context, changes: Sequence[Intervention]) -> bool:
    """Does the loss stay the same as long as nothing is learned? Then whatever it is made of stays the same too."""
    if not context.plan(1, SHARE, STILL):
        return False
    context.tell("making sure that the batch stays the same")
    still = Variant("overfit-still", (*changes, *ONE_BATCH, SetRate(0.0)))
    outcome = context.run([still], STILL)[0]
    losses = outcome.curve.finite[2:]
    replaced = (outcome.notes.get("frozen") or {}).get("replaced")  # else these data differ only as the model learns
    return bool(replaced) and len(losses) >= STILL // 2 and max(losses) - min(losses) <= 1e-4 * abs(losses[0])


class _Answer:
    """Puts into words what the runs showed."""

    def __init__(
        self,
        outcome: Outcome,
        record: Record,
        reading: Reading,
        others: Sequence[tuple[float, Outcome, Reading]],
        frozen: bool,
    ) -> None:
        self._outcome, self._record, self._reading = outcome, record, reading
        self._others = list(others)
        self._works = next((factor for factor, _, other in others if other.state == "passed"), None)
        self._frozen = frozen
        self._caveats = _doubts(record, reading, frozen)

    def experiment(self, seconds: float) -> Experiment:
        verdict = self._verdict()
        explained = explained_by(self._record) if verdict == "failed" else []
        curves = [NamedCurve("one batch", self._outcome.curve)]
        curves += [NamedCurve(f"rate x {factor:g}", outcome.curve) for factor, outcome, _ in self._others]
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

    def _verdict(self) -> str:
        reading = self._reading
        if reading.state == "passed":
            return "passed"
        if reading.end is None and self._works is None:
            return "undecided"  # what breaks at once at every rate has a rule of its own
        if reading.state not in ("stuck", "broken") and not (reading.state == "falling" and self._never_works()):
            return "undecided"
        too_slow = (self._works or 0.0) > 1 or any(factor > 1 for factor, _ in self._better())
        return "undecided" if too_slow or (self._caveats and reading.moved) else "failed"

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

    def _sentence(self, verdict: str, explained: Sequence[tuple[str, str]]) -> str:
        reading = self._reading
        fell = f"fed one batch, the loss {_course(reading)}"
        floor = reading.levels.floor
        if verdict == "passed":
            reach = "its floor is not known" if floor is None else f"its floor is {_told(floor)}"
            return f"The loop can learn: {fell}, and {reach}."
        parts = [f"{fell[0].upper()}{fell[1:]}{_why_far(reading)}"]
        if self._works is not None:
            parts.append(f"with {self._works:g} times its learning rate it comes to the floor")
        elif reading.state == "falling" and verdict == "failed":
            ends = [(factor, other.end) for factor, _, other in self._others if factor > 1 and other.levels_off]
            told = " and ".join(f"{_told(end)} with {factor:g}" for factor, end in ends)
            parts.append(f"it levels off at {told} times the learning rate")
        elif better := self._better():
            parts.append(f"with {better[0][0]:g} times its learning rate it comes down to {_told(better[0][1])}")
        elif self._others and verdict == "failed":
            rates = ", ".join(f"{factor:g}" for factor, _, _ in sorted(self._others, key=lambda other: other[0]))
            parts.append(f"it does no better with {rates} times the learning rate")
        if reading.state == "falling" and verdict == "undecided" and self._works is None:
            parts.append("it was still falling")
        sentence = "; ".join(parts) + "."
        return sentence + (f" {explained[0][1]} ({explained[0][0]})" if explained else "")

    def _method(self) -> str:
        steps = f"the data of one step for {self._reading.steps} steps, dropout and weight decay off"
        return f"{steps}; {_way(self._outcome)}"

    def _measures(self, verdict: str, codes: Sequence[str]) -> dict[str, Measure]:
        reading, expected = self._reading, expected_start(self._record)
        return {
            "start": reading.start,
            "expected": expected[0] if expected else None,
            "floor": reading.levels.floor,
            "constant": reading.levels.constant,
            "lowest": reading.lowest,
            "end": reading.end,
            "left": reading.left,
            "steps": reading.steps,
            "frozen": self._frozen,
            "slow": verdict == "undecided"
            and (reading.state == "falling" or (self._works or 0.0) > 1 or bool(self._better())),
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
    return f"went from {_told(reading.start)} to {_told(reading.end)} in {steps}"


def _why_far(reading: Reading) -> str:
    levels = reading.levels
    if reading.state == "below":
        return f", below {_told(levels.floor)}, which no such loss can pass: it does not measure what it should"
    if reading.end is None:
        return ""
    if not reading.moved:
        return " and did not move at all"
    if levels.constant and reading.end is not None and reading.end > 0.97 * levels.constant > (levels.floor or 0.0):
        return f", no lower than that of one answer for every example ({_told(levels.constant)})"
    return "" if levels.floor is None else f", and its floor is {_told(levels.floor)}"


def explained_by(record: Record) -> list[tuple[str, str]]:
    """Rules that see, in the same run, a reason why it cannot learn: their codes and messages, most likely first."""
    from unstuck.judge import judge
    from unstuck.rule import find_rule

    found = []
    for diagnosis in judge(record=record).diagnoses:
        rule = find_rule(diagnosis.lead.code)
        if rule is not None and "O01" in rule.explains:
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


def _doubts(record: Record, reading: Reading, frozen: bool) -> list[str]:
    """Why a failure would not be certain."""
    from unstuck.events import OptimizerStep

    doubts = []
    if not frozen:
        doubts.append("Some of the data that the loop works on may have changed from step to step.")
    if len({step.optimizer for step in record.of(OptimizerStep)}) > 1:
        doubts.append("Several optimizers step, and each may have a loss of its own.")
    parameters = _trainable(record)
    if reading.levels.targets and 0 < parameters < reading.levels.targets:
        doubts.append(f"The model has {parameters} numbers to train for {reading.levels.targets} targets.")
    if reading.levels.floor is None and reading.end is not None and reading.end < 0:
        doubts.append("The loss is negative, so its floor is not known.")
    return doubts


def _trainable(record: Record) -> int:
    from unstuck.events import OptimizerSeen

    sizes = {fact.key: fact.size for seen in record.of(OptimizerSeen) for fact in seen.parameters if fact.trainable}
    return sum(sizes.values())


def _record(outcome: Outcome) -> Record | None:
    from unstuck.record import RecordError

    try:
        return outcome.record()
    except RecordError:
        return None


def _nothing_read(outcome: Outcome) -> str:
    taken = len(outcome.curve.losses)
    if outcome.status == "failed":
        return "The script could not be run on one batch."
    if outcome.status == "crashed":
        last = (outcome.output.strip().splitlines() or [""])[-1]
        return f"The script failed after {taken} steps on one batch: {last}"
    if outcome.status == "killed":
        return f"The script took {taken} steps in the time it had, too few to tell."
    if not taken:
        return "No optimizer step with a loss was seen."
    return f"The script ended after {taken} steps, too few to tell."


def _undecided(sentence: str) -> Experiment:
    return Experiment(name="overfit", verdict="undecided", sentence=sentence, method="one batch")


def _told(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"
