"""Is anything learned from the input? Real inputs against zeros and those of other examples, targets unchanged.

Runs of one seed meet the same targets in the same order, so they are compared step by step.
Measures: `real`, `zeros`, `shuffled` (the loss over the second half of the steps), `advantage` (of real inputs over the
better of the others, as a share of its loss), `error` (its standard error), `identical` (real and other inputs lead to
the very same losses), `seeds`, `steps`, `guess` (what the best constant answer costs), `smallest` (the advantage that
would have shown), `overfits` (the verdict of `overfit`, if it was asked), `certain` (nothing else explains it).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.experiments import experiment
from unstuck.experiments.overfit import overfit
from unstuck.experiments.swaps import guess_for
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, NamedCurve, Status
from unstuck.interventions import Intervention
from unstuck.interventions.change_inputs import ChangeInputs, Inputs
from unstuck.interventions.no_dropout import NoDropout
from unstuck.interventions.options import NoWeightDecay
from unstuck.interventions.seeds import Seed
from unstuck.record.goals import may_rise
from unstuck.trials.context import NoTime
from unstuck.trials.loops import loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.findings.curve import Curve
    from unstuck.trials.context import Context

STEPS = 300
ENOUGH = 150
"""Steps after which a loss that is no better than without its inputs is reported."""
ENOUGH_IF_GUESSING = 60
"""The same, where the loss is no lower than that of a guess."""
FEWEST = 40
SHARE = 0.7
"""Of the time that is left, what the runs may take."""
SEEDS = (0, 1)
OTHERS = {Inputs.SHUFFLED: "with the inputs of other examples", Inputs.ZEROS: "with zeros"}
REAL = "real"
BLOCKS = 6
"""Neighbouring steps are alike, so the error is that of means over blocks of them."""
CERTAIN = 4.0
"""Standard errors by which real inputs must lead lower to be better."""
CLEAR = 0.05
"""The advantage of real inputs that is called clear, as a share of the loss without."""
NONE = 0.02
"""An advantage that is at most so large is none."""
SAME = 1e-6


class Comparison(msgspec.Struct, frozen=True):
    """Real inputs against one other kind, over the second half of the steps that both took."""

    kind: str
    seed: int
    real: float
    other: float
    advantage: float
    """By how much lower real inputs lead, as a share of the loss without."""
    error: float
    steps: int
    identical: bool

    @property
    def is_clear(self) -> bool:
        """Do real inputs certainly lead much lower?"""
        return self.advantage > self.smallest

    @property
    def smallest(self) -> float:
        """The smallest advantage that would have been called one."""
        return max(CLEAR, CERTAIN * self.error)

    @property
    def is_none(self) -> bool:
        """Can any advantage worth a word be ruled out?"""
        return self.advantage + 2 * self.error < NONE


@experiment(
    "does the model learn anything from its inputs?",
    """Train on the real inputs, on zeros and on inputs exchanged between the examples,
with the same seeds and steps. If the loss falls just as far without the real inputs, nothing is
learned from them.""",
    order=2,
    runs_if_longer=3 * len(SEEDS),
)
def baseline(context: Context, changes: Sequence[Intervention] = (), wanted: int = STEPS) -> Experiment:
    """Train with real, zeroed and exchanged inputs, each with the same seeds for the same steps. Raises `NoTime`."""
    began = time.monotonic()
    seeds = SEEDS if context.plan(3 * len(SEEDS), SHARE, wanted) >= ENOUGH else SEEDS[:1]
    steps = context.steps_for(3 * len(seeds), SHARE, wanted, least=FEWEST)
    context.tell("comparing real inputs with zeroed and exchanged ones")
    variants = [variant for seed in seeds for variant in _variants(seed, changes)]
    outcomes = context.run(variants, steps)
    runs = [outcomes[index : index + 3] for index in range(0, len(outcomes), 3)]
    problem = _problem(outcomes)
    compared = [c for seed, trio in zip(seeds, runs, strict=True) for c in _compare(seed, trio, steps)]
    if problem or not compared:
        return _undecided(problem or _nothing_compared(outcomes), runs[0])
    if not all(c.is_clear for c in compared):
        # Examples seen before may be memorized, which needs no information from the input.
        unseen = [c for seed, trio in zip(seeds, runs, strict=True) for c in _compare(seed, trio, _first_pass(trio[0]))]
        compared = unseen if len(unseen) == len(compared) else compared
    record = runs[0][0].record_or_none()
    verdict, sentence, measures = _judge(context, changes, compared, guess_for(record) if record else None)
    return Experiment(
        name="baseline",
        verdict=verdict,
        sentence=sentence,
        method=_method(compared),
        curves=_curves(runs[0]),
        measures=measures,
        caveats=tuple(_caveats(outcomes)),
        seconds=time.monotonic() - began,
    )


def _variants(seed: int, changes: Sequence[Intervention]) -> list[Variant]:
    shared = (Seed(seed), *changes)
    return [
        Variant(f"real-seed{seed}", shared),
        *(Variant(f"{kind}-seed{seed}", (*shared, ChangeInputs(kind))) for kind in OTHERS),
    ]


def _first_pass(outcome: Outcome) -> int:
    """The steps until every example has been seen once; all, if that is not known."""
    from unstuck.events import LoaderSeen

    record = outcome.record_or_none()
    loaders = [seen for seen in record.of(LoaderSeen) if seen.trained] if record is not None else []
    passes = [seen.length // seen.batch_size for seen in loaders if seen.length and seen.batch_size]
    return max(passes, default=STEPS)


def _compare(seed: int, trio: Sequence[Outcome], steps: int) -> list[Comparison]:
    real, *others = trio
    found = []
    for kind, other in zip(OTHERS, others, strict=True):
        if (other.notes.get("inputs") or {}).get("changed"):
            compared = compare(kind, seed, loop_of(real).curve.until(steps), loop_of(other).curve)
            found += [compared] if compared else []
    return found


def compare(kind: str, seed: int, real: Curve, other: Curve) -> Comparison | None:
    """Two runs step by step; None if they share too few steps, or one of them stopped being a number."""
    without = dict(zip(other.steps, other.losses, strict=True))
    pairs = [
        (own, without[step])
        for step, own in zip(real.steps, real.losses, strict=True)
        if own is not None and without.get(step) is not None
    ]
    if len(pairs) < FEWEST:
        return None
    late = pairs[len(pairs) // 2 :]
    level = math.fsum(after or 0.0 for _, after in late) / len(late)
    if level <= 0:
        return None
    gains = [((after or 0.0) - own) / level for own, after in late]
    size = len(gains) // BLOCKS
    blocks = [math.fsum(gains[i * size : (i + 1) * size]) / size for i in range(BLOCKS)]
    mean = math.fsum(gains) / len(gains)
    spread = math.sqrt(math.fsum((block - mean) ** 2 for block in blocks) / (BLOCKS - 1))
    return Comparison(
        kind=kind,
        seed=seed,
        real=math.fsum(own for own, _ in late) / len(late),
        other=level,
        advantage=mean,
        error=spread / math.sqrt(BLOCKS),
        steps=len(pairs),
        identical=all(abs((after or 0.0) - own) <= SAME * abs(own) for own, after in pairs),
    )


def _judge(
    context: Context, changes: Sequence[Intervention], compared: Sequence[Comparison], guess: float | None
) -> tuple[ExperimentVerdict, str, dict[str, Measure]]:
    levels = _levels(compared)
    steps = min(c.steps for c in compared)
    least = min(compared, key=lambda c: c.advantage)
    measures: dict[str, Measure] = {
        **levels,
        "advantage": least.advantage,
        "error": least.error,
        "identical": all(c.identical for c in compared),
        "seeds": len({c.seed for c in compared}),
        "steps": steps,
        "guess": guess,
        "smallest": max(c.smallest for c in compared),
    }
    others = ", ".join(f"{levels[kind]:.3g} {words}" for kind, words in OTHERS.items() if kind in levels)
    seen = f"over the second half of {steps} steps the loss is {levels[REAL]:.3g} with the real inputs, {others}"
    if all(c.is_clear for c in compared):
        return ExperimentVerdict.LEARNS, f"The input is used: {seen}.", measures
    seen = f"{seen[0].upper()}{seen[1:]}"
    # A loss no lower than that of a guess has learned nothing from its inputs, however noisy it is.
    guesses = guess is not None and levels[REAL] > (1 - NONE) * guess and not any(c.is_clear for c in compared)
    if not guesses and not all(c.is_none for c in compared):
        visible = f"an advantage of less than {measures['smallest']:.0%} would not have shown"
        return ExperimentVerdict.UNDECIDED, f"{seen}: too close to say that the input is used; {visible}.", measures
    if guesses:
        seen = f"{seen}; a guess costs {guess:.3g}"
    if measures["identical"]:
        measures["certain"] = True
        return ExperimentVerdict.IGNORES, f"{seen}: nothing is learned from the input.", measures
    if steps < (ENOUGH_IF_GUESSING if guesses else ENOUGH):
        said = f"{seen}; {steps} steps are too few to say that the input is not used."
        return ExperimentVerdict.UNDECIDED, said, measures
    doubt, measures["overfits"], overfits = _doubt(context, changes, steps)
    if doubt:
        return ExperimentVerdict.UNDECIDED, f"{seen}; {doubt}.", measures
    measures["certain"] = overfits and steps >= ENOUGH
    # Otherwise it may be the model that cannot use what the inputs carry.
    why = "nothing is learned from the input" if overfits else "the inputs carry nothing, or the model cannot use it"
    return ExperimentVerdict.IGNORES, f"{seen}: {why}.", measures


def _doubt(context: Context, changes: Sequence[Intervention], steps: int) -> tuple[str, Measure, bool]:
    """What else would explain it: a loop that is too slow, or dropout and decay, which `overfit` switches off.

    Also the verdict of `overfit`, and whether the loop can learn one batch.
    """
    try:
        one_batch = overfit(context, changes)
    except NoTime:
        return "there was no time to see whether the loop can overfit a single batch", None, False
    if one_batch.measures.get("slow"):
        return "but the loop is too slow on a single batch, too, for a difference to show", one_batch.verdict, False
    passed = one_batch.verdict is ExperimentVerdict.PASSED
    if context.has_time_for(3, steps):
        context.tell("comparing them again without dropout and weight decay")
        trio = context.run(_variants(SEEDS[0], (*changes, NoDropout(), NoWeightDecay())), steps)
        again = _compare(SEEDS[0], trio, steps)
        if again and all(c.is_clear for c in again):
            levels = _levels(again)
            used = f"without dropout and weight decay it is {levels[REAL]:.3g} with the real inputs, and these are used"
            return used, one_batch.verdict, passed
    return "", one_batch.verdict, passed


def _levels(compared: Sequence[Comparison]) -> dict[str, float]:
    levels: dict[str, float] = {REAL: _mean([c.real for c in compared])}
    for kind in OTHERS:
        values = [c.other for c in compared if c.kind == kind]
        if values:
            levels[kind] = _mean(values)
    return levels


def _problem(outcomes: Sequence[Outcome]) -> str:
    """Why these runs cannot be compared, if they cannot."""
    real = outcomes[0]
    if not real.curve.losses:
        return "No optimizer step with a loss was seen."
    if real.status is Status.CRASHED:
        return f"The script failed after {len(real.curve.losses)} steps."
    if real.curve.is_broken:
        return "The loss is NaN or infinite for every input."
    if len(real.curve.finite) < FEWEST:
        return f"The script took {len(real.curve.losses)} steps, too few to tell."
    if any(value < 0 for outcome in outcomes for value in outcome.curve.finite):
        return "The loss is negative at times, so a lower one need not be a better one."
    record = real.record_or_none()
    if record is not None and may_rise(record):
        return "The goal of this loss moves with the model, so a lower one need not be a better one."
    if loop_of(real).has_several_losses:
        return "Several optimizers step, and each may have a loss of its own."
    return ""


def _nothing_compared(outcomes: Sequence[Outcome]) -> str:
    changed = [outcome for outcome in outcomes if (outcome.notes.get("inputs") or {}).get("changed")]
    if not changed:
        return "The inputs of the model could not be changed."
    steps = max(len(outcome.curve.finite) for outcome in changed)
    return f"With other inputs the script took {steps} steps in the time it had, too few to compare."


def _caveats(outcomes: Sequence[Outcome]) -> list[str]:
    caveats = []
    for outcome in outcomes:
        if outcome.status in (Status.CRASHED, Status.KILLED, Status.FAILED):
            caveats.append(f"The run {outcome.variant.name} {outcome.status} after {len(outcome.curve.losses)} steps.")
        inputs = outcome.notes.get("inputs")
        if inputs is not None and not inputs.get("changed"):
            caveats.append(f"There was nothing to change in the inputs of {outcome.variant.name}.")
    return caveats


def _method(compared: Sequence[Comparison]) -> str:
    seeds = len({c.seed for c in compared})
    steps = min(c.steps for c in compared)
    return f"{steps} steps each, targets unchanged, {seeds} seed{'s' if seeds > 1 else ''}"


def _curves(trio: Sequence[Outcome]) -> tuple[NamedCurve, ...]:
    names = ("real inputs", "inputs of other examples", "zeros")
    return tuple(NamedCurve(name, outcome.curve) for name, outcome in zip(names, trio, strict=True))


def _undecided(sentence: str, trio: Sequence[Outcome] = ()) -> Experiment:
    return Experiment(
        name="baseline",
        verdict=ExperimentVerdict.UNDECIDED,
        sentence=sentence,
        method="real inputs against other ones",
        curves=_curves(trio) if trio else (),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
