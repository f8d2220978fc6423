"""Runs with one part of the recipe switched off or replaced, against the run as it is: is that part what is in the way?

A part holds a run back if without it the loss ends clearly lower on three seeds (`trials.pairs`) and if, with it, the
run makes less than a third of the progress. Training without dropout ends lower in almost every run, so a lower loss
alone says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.findings.curve import Curve
from unstuck.findings.results import (
    Experiment,
    ExperimentVerdict,
    Measure,
    NamedCurve,
    Pair,
    ProofVerdict,
    RecipePart,
    Status,
)
from unstuck.interventions import Intervention
from unstuck.interventions.seeds import Seed
from unstuck.trials.loops import loop_of
from unstuck.trials.pairs import LARGE_EFFECT, SEEDS, decide, gain_of, is_same, run_pairs
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.events import Place
    from unstuck.record import Record
    from unstuck.trials.context import Context

STEPS = 300
FEWEST = 40
SHARE = 0.5
"""Of the time that is left, what the first runs may take: if one of them shows anything, it is repeated."""
HELD_BACK = 1 / 3
"""Of the progress without the part, what the run as it is may make."""
MOST_REPEATED = 2
"""Parts that are tried on more seeds."""


class Swap(msgspec.Struct, frozen=True):
    """One part of the recipe, and the change that takes it away."""

    part: RecipePart
    change: Intervention
    detail: str
    """What the script has, such as `weight decay 0.5`."""
    without: str
    """What the change makes of it, such as `without it`."""
    named: str
    """The same by itself, such as `without weight decay`."""
    place: Place | None = None


class Level(msgspec.Struct, frozen=True):
    """Where runs with and without a part ended, and from where their progress counts."""

    own: float
    other: float
    reference: float

    @property
    def is_held_back(self) -> bool:
        """Does the run without the part get somewhere, and the one with it hardly anywhere in comparison?"""
        reached = self.reference - self.other
        return reached > 0 and self.reference - self.own < HELD_BACK * reached


def problem_of(own: Outcome) -> str:
    """Why the losses of this program cannot be compared, if they cannot."""
    from unstuck.record.goals import may_rise

    record, loop = own.record_or_none(), loop_of(own)
    if record is None or not loop.curve.losses:
        return "No optimizer step with a loss was seen."
    if own.status is Status.CRASHED:
        return f"The script failed after {len(loop.curve.losses)} steps."
    if loop.has_several_losses:
        return "Several optimizers step on losses of their own, and there is no single one to compare."
    if len(loop.curve.finite) < FEWEST and not loop.curve.is_broken:
        return f"The script took {len(loop.curve.losses)} steps, too few to tell."
    if may_rise(record):
        return "The goal of this loss moves with the model, so a lower one need not be a better one."
    return ""


def guess_for(record: Record) -> float | None:
    """What the best constant answer costs, where that is known."""
    from unstuck.experiments.overfit import expected_start
    from unstuck.judge import judge

    known = next((outcome.guess for outcome in judge(record=record).outcomes if outcome.guess is not None), None)
    expected = expected_start(record)
    return known if known is not None else expected[0] if expected else None


def level_of(pairs: Sequence[Pair], guess: float | None) -> Level | None:
    """Means over pairs; None if the other runs came to nothing."""
    ends = [_ends(pair) for pair in pairs]
    others = [other for _, other in ends]
    starts = [pair.remedied.start for pair in pairs if pair.remedied.start is not None]
    if not starts or not all(map(math.isfinite, others)):
        return None
    start = math.fsum(starts) / len(starts)
    # From the guess where the first loss is above it: the way down from an absurd start is nothing learned.
    reference = start if guess is None else min(start, guess)
    return Level(math.fsum(own for own, _ in ends) / len(ends), math.fsum(others) / len(others), reference)


def _ends(pair: Pair) -> tuple[float, float]:
    length = min(len(pair.without.losses), len(pair.remedied.losses))
    curves = (pair.without if pair.without.is_broken else pair.without.until(length), pair.remedied.until(length))
    first, second = (math.inf if curve.end is None else curve.end for curve in curves)
    return first, second


def answer(
    name: str, context: Context, changes: Sequence[Intervention], swaps: Sequence[Swap], own: Outcome, steps: int
) -> Experiment:
    """Try each of these on one seed, and what shows something on three. The first that is confirmed is the answer."""
    record = own.record_or_none()
    guess = guess_for(record) if record is not None else None
    context.tell(f"running it {', '.join(swap.named for swap in swaps)}")
    variants = [Variant(f"without-{swap.part}-seed0", (Seed(0), *changes, swap.change)) for swap in swaps]
    context.run(variants, steps)  # side by side; what follows finds them done
    screens = [(swap, pairs_of(context, changes, swap, [0], steps)) for swap in swaps]
    # Where all losses are the same, there was nothing to take away.
    screens = [(swap, pairs) for swap, pairs in screens if not is_same(pairs[0].without, pairs[0].remedied)]
    if not screens:
        return undecided(name, "Nothing of what can be switched off is part of this run.")
    tried = ", ".join(swap.part for swap, _ in screens)
    measures: dict[str, Measure] = {"steps": steps, "guess": guess, "tried": tried}
    curves = [NamedCurve("as it is", loop_of(own).curve)]
    curves += [NamedCurve(swap.named, pairs[0].remedied) for swap, pairs in screens]
    for swap, pairs in _candidates(screens, guess, steps):
        if not context.has_time_for(2 * (SEEDS - 1), steps):
            continue
        context.tell(f"repeating it {swap.named} on other seeds")
        pairs += pairs_of(context, changes, swap, range(1, SEEDS), steps)
        level = level_of(pairs, guess)
        gains = [gain for pair in pairs if (gain := gain_of(pair, steps)) is not None]
        if level is None or not gains or not level.is_held_back or decide(gains)[0] is not ProofVerdict.CONFIRMED:
            continue
        measures |= {"part": swap.part.value, "detail": swap.detail, "own": level.own, "other": level.other}
        return Experiment(
            name=name,
            verdict=ExperimentVerdict.HELD_BACK,
            sentence=_sentence(swap, level, guess, pairs),
            method=f"{steps} steps each, {len(pairs)} seeds, nothing else changed",
            curves=tuple(curves),
            measures=measures | {"seeds": len(pairs)},
            place=swap.place,
            pairs=tuple(pairs),
        )
    unrepeated = [swap.part for swap, pairs in _candidates(screens, guess, steps) if len(pairs) < SEEDS]
    return Experiment(
        name=name,
        verdict=ExperimentVerdict.UNDECIDED if unrepeated else ExperimentVerdict.NO_BETTER,
        sentence=_nothing(screens, unrepeated, steps),
        method=f"{steps} steps each, one seed, nothing else changed",
        curves=tuple(curves),
        measures=measures,
    )


def pairs_of(
    context: Context, changes: Sequence[Intervention], swap: Swap, seeds: Sequence[int], steps: int
) -> list[Pair]:
    """The run with and without a part, on these seeds."""
    return run_pairs(context, swap.part, (swap.change,), seeds, steps, changes, curve=lambda run: loop_of(run).curve)


def _candidates(
    screens: Sequence[tuple[Swap, list[Pair]]], guess: float | None, steps: int
) -> Iterator[tuple[Swap, list[Pair]]]:
    """Those that do clearly better on the first seed, the best first."""
    found: list[tuple[float, int, Swap, list[Pair]]] = []
    for swap, pairs in screens:
        gain, level = gain_of(pairs[0], steps), level_of(pairs, guess)
        if gain is not None and level is not None and gain < math.log1p(-LARGE_EFFECT) and level.is_held_back:
            found.append((level.other, len(found), swap, pairs))
    yield from ((swap, pairs) for _, _, swap, pairs in sorted(found, key=lambda one: one[:2])[:MOST_REPEATED])


def _sentence(swap: Swap, level: Level, guess: float | None, pairs: Sequence[Pair]) -> str:
    steps = min(len(pair.remedied.losses) for pair in pairs)
    known = "" if guess is None else f" (a guess costs {guess:.3g})"
    stays = "is not finite" if not math.isfinite(level.own) else f"is {level.own:.3g}"
    return (
        f"With {swap.detail} the loss {stays} after {steps} steps{known}; {swap.without}, it comes to "
        f"{level.other:.3g} ({len(pairs)} seeds)."
    )


def _nothing(screens: Sequence[tuple[Swap, list[Pair]]], unrepeated: Sequence[str], steps: int) -> str:
    ends = {swap.named: _ends(pairs[0]) for swap, pairs in screens}
    own = next(iter(ends.values()))[0]
    listed = ", ".join(f"{_digits(other)} {named}" for named, (_, other) in ends.items())
    seen = f"After {steps} steps the loss is {_digits(own)} as it is, {listed}"
    if unrepeated:
        return f"{seen}; there was no time to try that on other seeds."
    that = "none of that holds" if len(ends) > 1 else "that is not what holds"
    return f"{seen}: {that} it back (on one seed; what costs two thirds of the progress would show)."


def _digits(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "not finite"


def undecided(name: str, sentence: str, curve: Curve | None = None) -> Experiment:
    """Nothing was compared, and this sentence says why."""
    return Experiment(
        name=name,
        verdict=ExperimentVerdict.UNDECIDED,
        sentence=sentence,
        method="the run as it is",
        curves=(NamedCurve("as it is", curve),) if curve is not None else (),
    )
