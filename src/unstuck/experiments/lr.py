"""The learning rate range test on the user's own loop, checked by short trainings where time allows.

Sweeps raise the rate of all groups in proportion, in geometric steps, until the loss diverges; that tells where it
falls fastest and where it breaks. Trainings at constant rates below that, half a decade apart, then tell which rate
trains best: a sweep alone is a noisy witness. If that is another rate than the script's own, by more than the two can
be distinguished, the run is repeated with it on three seeds, which settles it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import msgspec

from unstuck.events import Gauges, OptimizerSeen, StateLoaded
from unstuck.experiments import experiment
from unstuck.experiments.swaps import Level, guess_for, level_of
from unstuck.findings.curve import Curve, smoothed
from unstuck.findings.results import (
    Experiment,
    ExperimentVerdict,
    Measure,
    NamedCurve,
    Pair,
    ProofVerdict,
    Status,
)
from unstuck.interventions import Intervention
from unstuck.interventions.learning_rate import SetRate, SweepRate
from unstuck.interventions.seeds import Seed
from unstuck.record.outcome import Achieved
from unstuck.trials.context import Context, NoTime
from unstuck.trials.loops import loop_of
from unstuck.trials.pairs import SEEDS, decide, gain_of, run_pairs
from unstuck.trials.runner import Outcome, Variant
from unstuck.trials.trial import StopReason

LOWEST, HIGHEST = 1e-6, 100.0
"""The rates of a sweep, widened where the script's own lies outside."""
SWEEP_STEPS = 160
TRAINING_STEPS = 200
FEWEST_STEPS = 40
SHARES = {"own": 0.2, "sweeps": 0.35, "trainings": 0.7}
"""Of the time that is left, what each part may take."""
DECADES_BELOW = 3.5
"""How far below divergence trainings begin to look."""
DECADE = 10.0
PAIRED_STEPS = 300
"""Steps of the runs that settle whether the suggested rate is better."""
MUCH_LOWER = 3.0
"""A loss so many times lower is a cause, where the run learns badly with its own rate."""
CLEARLY = 0.2
"""The script's own rate is wrong only if the run loses at least this share of the gain by it."""
RISING = 1.3
"""A rate so many times what it was in the middle of the run is being warmed up."""
WITHOUT_RATE = ("LBFGS",)
WINDOW = 0.4
"""Decades over which a sweep is smoothed."""
GIVEN_BACK = 0.5
"""A sweep has diverged where the loss has given back this share of what it had gained."""
NOISE = 4.0
"""A change of the loss counts from so many standard deviations of its noise on."""
LEAST_GAIN = 0.01
"""And from this share of the first loss on."""
TAIL = 0.2
"""The result of a short training is the mean of this share of its losses, the last ones."""
TEMPERATURE = 0.08
"""How much worse a training may end, as a share of the gain, to count e times less for the suggested rate."""


class Own(msgspec.Struct, frozen=True):
    """The script's own rate, as a plain run shows it."""

    optimizer: str
    rate: float
    built_with: float
    curve: Curve
    is_rising: bool = False
    is_loaded: bool = False
    guess: float | None = None
    """What the best constant answer costs."""
    learns: bool = False
    """Does it learn well as it is?"""


class Unfit(Exception):
    """There is nothing to sweep, and this sentence says why."""


def remedy(done: Experiment) -> SetRate | None:
    """The suggested rate, if the script's own is wrong."""
    own, suggested = done.measures.get("own"), done.measures.get("suggested")
    is_wrong = done.verdict in (ExperimentVerdict.TOO_LOW, ExperimentVerdict.TOO_HIGH)
    return SetRate(float(suggested) / float(own)) if is_wrong and own and suggested else None


@experiment(
    "which learning rates work?",
    """Raise the learning rate of the script's own loop from step to step until the loss
diverges, and say which band of rates learns fastest and where the script's own rate lies.""",
    order=4,
    if_going_well=False,
    remedy=remedy,
)
def lr(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Sweep the rate, train at constant rates, and say where the script's own lies.

    Measures: `own`, `suggested`, `lowest` and `highest` of the band, `steepest`, `diverged_at` (None: it never did),
    `steps` of a sweep, `trainings` (at how many rates) of `training_steps`, `own_result` and `suggested_result` (the
    losses they end at), `own_broken` (did the script's own run end non-finite or above its start?), `optimizer`,
    `confirmed` (over so many `seeds` the suggested rate led lower, to `other` instead of `with_own` in `paired_steps`;
    None: there was no time), `holds_back` (is its own rate what keeps the run from learning?). Raises `NoTime`.
    """
    began = time.monotonic()
    try:
        own = _own(context, tuple(changes))
        sweeps, base = _sweeps(context, tuple(changes), own)
        diverged = middle([sweep.diverged_at for sweep in sweeps])
        results = _trainings(context, tuple(changes), base, diverged or sweeps[0].rates[-1])
        found = _settled(context, tuple(changes), own, _judged(own, sweeps, diverged, results))
    except Unfit as reason:
        found = _undecided(str(reason))
    return msgspec.structs.replace(found, seconds=time.monotonic() - began)


def _settled(context: Context, changes: tuple[Intervention, ...], own: Own, found: Experiment) -> Experiment:
    """The run with the suggested rate against the run as it is, if the two rates differ enough to matter."""
    change = remedy(found)
    if change is None:
        return found
    try:
        steps = context.steps_for(2 * SEEDS, 1.0, PAIRED_STEPS, least=FEWEST_STEPS, least_runs=2)
    except NoTime:
        return msgspec.structs.replace(found, caveats=(*found.caveats, "There was no time to try it on other seeds."))
    context.tell(f"trying a learning rate of {found.measures['suggested']:.2g} on {SEEDS} seeds")

    def on(seeds: Sequence[int]) -> list[Pair]:
        return run_pairs(context, "rate", (change,), seeds, steps, changes, curve=lambda run: loop_of(run).curve)

    pairs = on([0])
    first = gain_of(pairs[0], steps)
    if first is not None and first < 0 and context.has_time_for(2 * (SEEDS - 1), steps):
        pairs += on(range(1, SEEDS))
    gains = [gain for pair in pairs if (gain := gain_of(pair, steps)) is not None]
    verdict = decide(gains)[0] if gains else ProofVerdict.UNDECIDED
    level = level_of(pairs, own.guess)
    measures: dict[str, Measure] = {
        **found.measures,
        "confirmed": verdict is ProofVerdict.CONFIRMED,
        "seeds": len(pairs),
        "paired_steps": steps,
        "with_own": level.own if level is not None and math.isfinite(level.own) else None,
        "other": level.other if level is not None else None,
        "holds_back": level is not None and _holds_back(level, own),
    }
    if verdict is ProofVerdict.CONFIRMED:
        sentence = f"{found.sentence} {_tried_in_words(measures)}"
        return msgspec.structs.replace(found, measures=measures, pairs=tuple(pairs), sentence=sentence)
    is_nothing = verdict in (ProofVerdict.NO_EFFECT, ProofVerdict.WORSE)
    return msgspec.structs.replace(
        found,
        verdict=ExperimentVerdict.INSIDE if is_nothing else ExperimentVerdict.UNDECIDED,
        sentence=f"{found.sentence} {_tried_in_words(measures)}",
        measures=measures,
    )


def _holds_back(level: Level, own: Own) -> bool:
    """Does the run hardly get anywhere with its own rate? Or does it learn badly, and three times lower can be had?"""
    return level.is_held_back or (not own.learns and 0 < MUCH_LOWER * level.other < level.own)


def _tried_in_words(measures: dict[str, Measure]) -> str:
    seeds = "one seed" if measures["seeds"] == 1 else f"{measures['seeds']} seeds"
    own, other = measures["with_own"], measures["other"]
    if not isinstance(other, float):
        return f"With it the run does not stay finite ({seeds})."
    reached = f"{own:.3g}" if isinstance(own, float) else "a loss that is not finite"
    return f"With it the loss is {other:.3g} after {measures['paired_steps']} steps instead of {reached} ({seeds})."


def _own(context: Context, changes: tuple[Intervention, ...]) -> Own:
    """The script as it is: which rate it uses, and how far it comes."""
    if context.available_steps is not None and context.available_steps < FEWEST_STEPS:
        raise Unfit(f"The script takes only {context.available_steps} steps; a range test needs {FEWEST_STEPS}.")
    rounds = 1 + math.ceil(_sweep_count(context) / context.runner.jobs)
    least_runs = rounds * context.runner.jobs  # alone it would be of no use
    steps = context.steps_for(1, SHARES["own"], TRAINING_STEPS, least=FEWEST_STEPS, least_runs=least_runs)
    from unstuck.judge import judge
    from unstuck.record.goals import may_rise

    context.tell("running at the script's own learning rate")
    outcome = context.run([Variant("own-rate", changes)], steps)[0]
    seen = _rates_of_objects(context, outcome) if context.live else _rates_on_record(outcome)
    if not seen.rates or not outcome.curve.losses:
        raise Unfit(f"No optimizer step was seen whose loss is known: the run {_ended(outcome)}.")
    if len(seen.kinds) > 1:
        raise Unfit(f"{len(seen.kinds)} optimizers step ({', '.join(sorted(seen.kinds))}): no single rate to test.")
    name, kind = next(iter(seen.kinds.items()))
    if kind in WITHOUT_RATE:
        raise Unfit(f"{kind} searches for the length of its steps itself: a range test says nothing about it.")
    record = outcome.record_or_none()
    if record is not None and may_rise(record):
        raise Unfit("The goal of this loss moves with the model, so a lower one need not be a better one.")
    highest = max(seen.rates)
    if not all(map(math.isfinite, seen.rates)):
        raise Unfit(f"The learning rate of {kind} is not finite: give it a number first.")
    if not highest > 0:
        raise Unfit(f"The learning rate of {kind} is 0 or not its own, so there is nothing to raise in proportion.")
    return Own(
        optimizer=name,
        rate=highest,
        built_with=seen.built_with or highest,
        curve=outcome.curve,
        is_rising=seen.rates[-1] > RISING * seen.rates[len(seen.rates) // 2],
        is_loaded=seen.is_loaded,
        guess=guess_for(record) if record is not None else None,
        learns=record is not None and any(one.word is Achieved.LEARNS for one in judge(record=record).outcomes),
    )


class Seen(msgspec.Struct, frozen=True):
    """Optimizers that step (kind by name), and the highest rate of a group, step by step."""

    kinds: dict[str, str]
    rates: tuple[float, ...]
    built_with: float = 0.0
    is_loaded: bool = False


def _rates_on_record(outcome: Outcome) -> Seen:
    record = outcome.record_or_none()
    if record is None:
        return Seen({}, ())
    gauges = [gauge for gauge in record.of(Gauges) if gauge.optimizer]
    built = {event.optimizer: event for event in reversed(list(record.of(OptimizerSeen)))}
    kinds = {gauge.optimizer: built[gauge.optimizer].kind for gauge in gauges if gauge.optimizer in built}
    return Seen(
        kinds,
        tuple(max(gauge.rates, default=0.0) for gauge in gauges),
        max((rate for name in kinds for rate in built[name].rates), default=0.0),
        any(event.matched for event in record.of(StateLoaded)),
    )


def _rates_of_objects(context: Context, outcome: Outcome) -> Seen:
    optimizers = context.objects.optimizers  # type: ignore[attr-defined]
    kinds = {f"{type(each).__name__}#{number}": type(each).__name__ for number, each in enumerate(optimizers, 1)}
    rates = [float(group.get("lr") or 0.0) for each in optimizers for group in each.param_groups]
    return Seen(kinds, (max(rates, default=0.0),) * len(outcome.curve.losses))


def _sweep_count(context: Context) -> int:
    return max(2, context.runner.jobs)


def _sweeps(context: Context, changes: tuple[Intervention, ...], own: Own) -> tuple[list[Sweep], float]:
    """One for each process that may run, with seeds of their own, and the rate that they multiply; once more if that
    turned out to be another than was thought."""
    context.tell("sweeping the learning rate")
    lowest, highest = min(LOWEST, own.rate / 100), max(HIGHEST, own.rate * 100)
    count = _sweep_count(context)
    base = own.built_with
    sweeps: list[Sweep] = []
    for _ in range(2):
        try:
            steps = context.steps_for(count, SHARES["sweeps"], SWEEP_STEPS, least=FEWEST_STEPS)
        except NoTime:
            if not sweeps:
                raise
            break
        change = SweepRate(lowest / base, highest / base, steps)
        variants = [Variant(f"sweep-{seed}", (Seed(seed), *changes, change), every=1) for seed in range(count)]
        outcomes = context.run(variants, steps)
        sweeps = [sweep for outcome in outcomes if (sweep := sweep_of(outcome)) is not None] or sweeps
        if not sweeps:
            raise Unfit(f"The sweep showed too few losses: the run {_ended(outcomes[0])}.")
        off = sweeps[0].rates[0] / lowest
        base *= off
        if 1 / DECADE < off < DECADE:
            break
    return sweeps, base


def _ended(outcome: Outcome) -> str:
    words = {
        Status.CRASHED: "crashed",
        Status.KILLED: "was ended when its time was over",
        Status.FAILED: "could not be started",
    }
    taken = len(outcome.curve.losses)
    return f"{words.get(outcome.status, 'ended')} after {taken} steps"


def _trainings(
    context: Context, changes: tuple[Intervention, ...], base: float, top: float
) -> dict[float, tuple[float, Curve]]:
    """Where short trainings at constant rates end, if time allows: a decade apart, then between the best ones."""
    rates = grid(top * 10**-DECADES_BELOW, top)
    coarse = rates[::-2][::-1]
    try:
        steps = context.steps_for(len(coarse) + 4, SHARES["trainings"], TRAINING_STEPS, least=FEWEST_STEPS)
    except NoTime:
        return {}
    found = _train_at(context, changes, base, coarse, steps)
    best = min(found, key=lambda rate: found[rate][0])
    if best == coarse[0]:
        found |= _train_at(context, changes, base, [best / DECADE], steps)
        best = min(found, key=lambda rate: found[rate][0])
    return found | _train_at(context, changes, base, [best / math.sqrt(DECADE), best * math.sqrt(DECADE)], steps)


def _train_at(
    context: Context, changes: tuple[Intervention, ...], base: float, rates: Sequence[float], steps: int
) -> dict[float, tuple[float, Curve]]:
    context.tell(f"training for {steps} steps at each of {len(rates)} rates")
    factors = [rate / base for rate in rates]
    variants = [
        Variant(f"at-{rate:.0e}", (*changes, SweepRate(factor, factor, steps)))
        for rate, factor in zip(rates, factors, strict=True)
    ]
    outcomes = context.run(variants, steps)
    return {
        rate: (math.inf if _has_failed(outcome) else result_of(outcome.curve), outcome.curve)
        for rate, outcome in zip(rates, outcomes, strict=True)
    }


def _has_failed(outcome: Outcome) -> bool:
    return outcome.status in (Status.CRASHED, Status.FAILED, Status.KILLED) or outcome.reason == StopReason.DIVERGED


def _judged(
    own: Own, sweeps: list[Sweep], diverged: float | None, trainings: dict[float, tuple[float, Curve]]
) -> Experiment:
    start = own.curve.start or 0.0
    steepest = middle([sweep.steepest for sweep in sweeps])
    results = {rate: result for rate, (result, _) in trainings.items() if math.isfinite(result)}
    if (met := next((rate for rate, result in results.items() if result == 0), None)) is not None:
        raise Unfit(
            f"At a rate of {met:.2g} the loss is exactly 0: it can be met without learning, and orders no rates."
        )
    learned = [rate for rate, result in results.items() if result < start - max(s.noise for s in sweeps)]
    if not learned and (steepest is None or results):
        return _nothing_learned(own, sweeps, diverged)
    top = (diverged or sweeps[0].rates[-1]) / DECADE
    suggested = best_rate(results, start) if learned else math.sqrt(min(steepest or top, top) * top)
    lowest, highest = min(steepest or suggested, top, suggested), max(top, suggested)
    steps = max((len(curve.losses) for _, curve in trainings.values()), default=0)
    own_result = result_of(own.curve.until(steps) if steps else own.curve)
    best = min([*results.values(), *(min(sweep.level) for sweep in sweeps)])
    lost = (own_result - best) / max(start - best, 1e-12)
    verdict = _verdict(own, lowest, highest, suggested, lost, _uncertainty(sweeps, trainings))
    measures: dict[str, Measure] = {
        "own": own.rate,
        "suggested": float(f"{suggested:.2g}"),
        "lowest": float(f"{lowest:.2g}"),
        "highest": float(f"{highest:.2g}"),
        "steepest": steepest,
        "diverged_at": diverged,
        "steps": max(len(sweep.rates) for sweep in sweeps),
        "trainings": len(trainings),
        "training_steps": steps,
        "own_result": own_result if math.isfinite(own_result) else None,
        "suggested_result": min(results.values()) if results else None,
        "own_broken": not own_result < start,
        "optimizer": own.optimizer,
    }
    sweep = max(sweeps, key=lambda one: len(one.rates))
    return Experiment(
        name="lr",
        verdict=verdict,
        sentence=_sentence(verdict, measures),
        method=_method(sweeps, trainings),
        curves=(NamedCurve("loss", Curve(tuple(range(len(sweep.rates))), sweep.level)),),
        measures=measures,
        caveats=_caveats(own, diverged, trainings),
        x_axis="learning rate",
        xs=sweep.rates,
    )


def _verdict(
    own: Own, lowest: float, highest: float, suggested: float, lost: float, uncertainty: float
) -> ExperimentVerdict:
    if lost < CLEARLY:
        return ExperimentVerdict.INSIDE
    if own.rate * uncertainty <= suggested:
        return ExperimentVerdict.UNDECIDED if own.is_rising else ExperimentVerdict.TOO_LOW
    if own.rate >= uncertainty * suggested:
        return ExperimentVerdict.TOO_HIGH
    return ExperimentVerdict.INSIDE if lowest <= own.rate <= highest else ExperimentVerdict.SLOWER


def _uncertainty(sweeps: Sequence[Sweep], trainings: Mapping[float, object]) -> float:
    """The factor by which the suggested rate may be off: what lies between two that were tried, or more if the sweeps
    disagree about where the loss diverges."""
    ends = [sweep.diverged_at for sweep in sweeps if sweep.diverged_at is not None]
    apart = max(ends) / min(ends) if ends else 1.0
    return min(DECADE, max(math.sqrt(DECADE), apart)) if trainings else DECADE


def _nothing_learned(own: Own, sweeps: list[Sweep], diverged: float | None) -> Experiment:
    first, last = sweeps[0].rates[0], sweeps[0].rates[-1]
    found = _undecided(
        f"At no learning rate from {first:.2g} to {last:.2g} does the loss fall, so the rate is not what holds it."
    )
    measures: dict[str, Measure] = {"own": own.rate, "suggested": None, "diverged_at": diverged, "learns": False}
    sweep = sweeps[0]
    curve = NamedCurve("loss", Curve(tuple(range(len(sweep.rates))), sweep.level))
    return msgspec.structs.replace(
        found, measures=measures, curves=(curve,), x_axis="learning rate", xs=sweep.rates, method=_method(sweeps, {})
    )


def _undecided(sentence: str) -> Experiment:
    return Experiment(
        name="lr", verdict=ExperimentVerdict.UNDECIDED, sentence=sentence, method="learning rate range test"
    )


def _sentence(verdict: ExperimentVerdict, measures: dict[str, Measure]) -> str:
    own, suggested = measures["own"], measures["suggested"]
    band = f"{measures['lowest']:.2g} to {measures['highest']:.2g}"
    where = {
        ExperimentVerdict.INSIDE: "trains as well",
        ExperimentVerdict.SLOWER: f"trains, but {_results(measures)}",
        ExperimentVerdict.TOO_LOW: "is too low",
        ExperimentVerdict.TOO_HIGH: "is too high",
        ExperimentVerdict.UNDECIDED: "was still being warmed up, and is low so far",
    }[verdict]
    diverged = measures["diverged_at"]
    limit = f"the loss diverges at {diverged:.2g}" if diverged else "the loss diverged at no rate that was tried"
    return f"The productive band is {band} ({limit}); your learning rate {own:.3g} {where}. Suggested: {suggested:.2g}."


def _results(measures: dict[str, Measure]) -> str:
    """How far it comes with its own rate, and with the best of those tried."""
    own, best = measures["own_result"], measures["suggested_result"]
    if not isinstance(own, float) or not isinstance(best, float):
        return "less than it could"
    return f"only to {own:.3g} in {measures['training_steps']} steps, where {best:.3g} can be reached"


def _method(sweeps: list[Sweep], trainings: dict[float, tuple[float, Curve]]) -> str:
    first, last = sweeps[0].rates[0], max(sweep.rates[-1] for sweep in sweeps)
    words = (
        f"{len(sweeps)} sweeps from {first:.1g} to {last:.1g} in {max(len(sweep.rates) for sweep in sweeps)} steps, "
        "all groups in proportion, the script's schedule overridden"
    )
    if not trainings:
        return words
    steps = max(len(curve.losses) for _, curve in trainings.values())
    return f"{words}; then {len(trainings)} trainings of {steps} steps at constant rates"


def _caveats(own: Own, diverged: float | None, trainings: dict[float, tuple[float, Curve]]) -> tuple[str, ...]:
    found = []
    if not trainings:
        found.append("The budget did not allow trainings at constant rates: this rests on the sweeps alone.")
    if own.is_rising:
        found.append("The script's rate was still being warmed up when it was read.")
    if own.is_loaded:
        found.append("Trained weights were loaded; a rate that is right to keep them may lie far below the band.")
    return tuple(found)


class Sweep(msgspec.Struct, frozen=True):
    """One sweep: the smoothed loss at each rate, and whether it ended because the loss blew up."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    level: tuple[float, ...]
    noise: float
    blew_up: bool

    @property
    def start(self) -> float:
        """The level it begins at."""
        return self.level[0]

    @property
    def bottom(self) -> int:
        """Where the level is lowest."""
        return min(range(len(self.level)), key=self.level.__getitem__)

    @property
    def gain(self) -> float:
        """How far the loss fell; 0 if that is no more than noise."""
        fallen = self.start - self.level[self.bottom]
        return fallen if fallen > max(NOISE * self.noise, LEAST_GAIN * abs(self.start)) else 0.0

    @property
    def steepest(self) -> float | None:
        """The rate at which the level falls fastest per decade; None if it never falls."""
        half = max(1, _width(self.rates) // 2)
        slopes = [
            (self.level[min(i + half, self.bottom)] - self.level[max(0, i - half)], i) for i in range(self.bottom + 1)
        ]
        return self.rates[min(slopes)[1]] if self.gain else None

    @property
    def diverged_at(self) -> float | None:
        """The first rate at which much of the gain is lost again, or at which the loss blew up."""
        lost = self.level[self.bottom] + max(GIVEN_BACK * self.gain, NOISE * self.noise)
        beyond = (rate for rate, level in list(zip(self.rates, self.level, strict=True))[self.bottom :] if level > lost)
        return next(beyond, self.rates[-1] if self.blew_up else None)


def sweep_of(outcome: Outcome) -> Sweep | None:
    """What a run under `SweepRate` showed; None if that is too little to say anything."""
    rates, curve = outcome.notes.get("rates") or [], outcome.curve
    pairs = [
        (rates[step - curve.steps[0]], loss)
        for step, loss in zip(curve.steps, curve.losses, strict=True)
        if loss is not None and math.isfinite(loss) and step - curve.steps[0] < len(rates)
    ]
    if len(pairs) < 5 or not pairs[0][0] > 0:
        return None
    rates, losses = tuple(rate for rate, _ in pairs), tuple(loss for _, loss in pairs)
    level = _level(rates, losses)
    early = [abs(one - other) for one, other in zip(losses, level, strict=True)][: max(5, len(losses) // 3)]
    noise = 1.25 * math.fsum(early) / len(early)
    return Sweep(rates, losses, level, noise, outcome.reason == StopReason.DIVERGED or curve.is_broken)


def _width(rates: Sequence[float]) -> int:
    decades = math.log10(rates[-1] / rates[0]) if rates[-1] > rates[0] else 1.0
    return max(3, round(WINDOW * len(rates) / decades) | 1)


def _level(rates: Sequence[float], losses: Sequence[float]) -> tuple[float, ...]:
    """Medians, then means, over a fraction of a decade."""
    width = _width(rates)
    medians = smoothed(losses, width)
    half = width // 2
    windows = (medians[max(0, i - half) : i + half + 1] for i in range(len(medians)))
    return tuple(math.fsum(window) / len(window) for window in windows)


def middle(values: Sequence[float | None]) -> float | None:
    """The geometric mean of what is known, if most of it is."""
    known = [value for value in values if value is not None]
    if not known or 2 * len(known) < len(values):
        return None
    return math.exp(math.fsum(math.log(value) for value in known) / len(known))


def grid(lowest: float, highest: float) -> list[float]:
    """The half decades (1, 3.16, 10, ...) in a range: the same whatever seed found the range, at least one."""
    first, last = math.ceil(2 * math.log10(lowest) - 1e-9), math.floor(2 * math.log10(highest) + 1e-9)
    return [10 ** (number / 2) for number in range(min(first, last), last + 1)]


def result_of(curve: Curve) -> float:
    """Where a training ended; infinite if it ended non-finite."""
    if not curve.losses or curve.losses[-1] is None:
        return math.inf
    tail = curve.finite[-max(5, round(TAIL * len(curve.losses))) :]
    return math.fsum(tail) / len(tail)


def best_rate(results: Mapping[float, float], start: float) -> float:
    """The rate in the middle of those that train best, each counted by how well it does: one run more or less, or
    another seed, moves it little. `results` says where a training at each rate ended, `start` where all began."""
    best = min(results.values())
    gain = max(start - best, 1e-12)
    weights = {rate: math.exp(-(result - best) / (TEMPERATURE * gain)) for rate, result in results.items()}
    total = math.fsum(weights.values())
    return 10 ** (math.fsum(weight * math.log10(rate) for rate, weight in weights.items()) / total)
