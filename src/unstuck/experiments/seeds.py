"""Is the run reproducible, and how much of its result is chance? (R06)"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.experiments import experiment
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, NamedCurve, Status
from unstuck.interventions import Intervention
from unstuck.interventions.seeds import OwnSeeds, Seed
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.events import Place
    from unstuck.record import Record
    from unstuck.trials.context import Context

STEPS = 100
FEWEST = 2
SEEDS = 3
SHARE = 0.5
EVERY = 1
"""Only sampled steps are recorded to the last bit."""


@experiment(
    "is the run reproducible, and how much does it vary with the seed?",
    """Run the script with the same seed twice and with others: is it reproducible, and
how much of a difference in the loss is mere chance?""",
    order=6,
    in_diagnosis=False,
)
def seeds(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Run it twice as it is, twice with every generator seeded alike, and with other seeds.

    Of live objects only seeded runs can be compared.
    Measures: `first_difference` (step; None if all is equal), `source` (what differs first, as far as it shows),
    `once_seeded` (equal when every generator is seeded), `noise` (deviation of the last losses over seeds, as a
    share of them), `lowest` and `highest` of these, `seeds`, `steps`, `script`. Raises `NoTime`.
    """
    began = time.monotonic()
    runs = 2 + SEEDS - 1 + (0 if context.live else 2)
    steps = context.steps_for(runs, SHARE, STEPS, least=FEWEST)
    context.tell("running it twice, and with other seeds")
    own = [] if context.live else [Variant(f"own-{run}", (*changes, OwnSeeds()), EVERY, repeat=run) for run in range(2)]
    same = [Variant(f"seeded-{run}", (*changes, Seed(0)), EVERY, repeat=run) for run in range(2)]
    others = [Variant(f"seed-{number}", (*changes, Seed(number))) for number in range(1, SEEDS)]
    outcomes = context.run([*own, *same, *others], steps)
    return _Answer(outcomes[: len(own)], outcomes[len(own) : len(own) + 2], outcomes[len(own) + 2 :]).experiment(began)


class _Answer:
    """Compares the runs and puts the comparison into words."""

    def __init__(self, own: Sequence[Outcome], same: Sequence[Outcome], others: Sequence[Outcome]) -> None:
        self._pair = own or same
        self._same = same
        self._over_seeds = [same[0], *others]
        self._of_script = bool(own)
        self._first = first_difference(*self._pair)
        self._first_seeded = first_difference(*same)

    def experiment(self, began: float) -> Experiment:
        shortest = min(len(outcome.curve.losses) for outcome in (*self._pair, *self._same))
        if shortest < FEWEST:
            return _experiment(ExperimentVerdict.UNDECIDED, _why_nothing(self._pair[0]), began)
        differs = self._first is not None or self._first_seeded is not None
        curves = [*zip(("one run", "the same again"), self._pair, strict=True)]
        curves += [(f"seed {number}", outcome) for number, outcome in enumerate(self._over_seeds)]
        return _experiment(
            ExperimentVerdict.NOT_REPRODUCIBLE if differs else ExperimentVerdict.REPRODUCIBLE,
            f"{self._sentence(shortest)} {_noise_in_words(self._ends)}".strip(),
            began,
            tuple(NamedCurve(label, outcome.curve) for label, outcome in curves if outcome.curve.losses),
            self._measures(shortest),
            self._place(),
        )

    @property
    def _ends(self) -> list[float]:
        return [outcome.curve.end for outcome in self._over_seeds if outcome.curve.end is not None]

    def _measures(self, steps: int) -> dict[str, Measure]:
        record = self._pair[0].record_or_none()
        return {
            "first_difference": self._first if self._first is not None else self._first_seeded,
            "source": ", ".join(self._sources()),
            "once_seeded": self._first_seeded is None,
            "noise": noise_of(self._ends),
            "lowest": min(self._ends, default=None),
            "highest": max(self._ends, default=None),
            "seeds": len(self._ends),
            "steps": steps,
            "script": record.started.script if record is not None else "",
        }

    def _sentence(self, steps: int) -> str:
        if self._first is None and self._first_seeded is None:
            seeded = "" if self._of_script else " from the same seed"
            return f"Two runs{seeded} give the same loss to the last bit in all {steps} steps."
        first = self._first if self._first is not None else self._first_seeded
        pair = self._pair if self._first is not None else self._same
        values = [dict(zip(run.curve.steps, run.curve.losses, strict=True)).get(first or 0) for run in pair]
        losses = f" ({values[0]:.6g} and {values[1]:.6g})" if None not in values else ""
        sources = self._sources()
        listed = " and ".join(filter(None, (", ".join(sources[:-1]), *sources[-1:])))
        what = f"; what differs first: {listed}" if sources else ""
        then = (
            "once every generator is seeded, they are equal"
            if self._first_seeded is None
            else "they differ also when every generator is seeded"
        )
        return f"Two runs of the same code differ from step {first} on{losses}{what}; {then}."

    def _sources(self) -> list[str]:
        pair = self._pair if self._first is not None else self._same
        records = [outcome.record_or_none() for outcome in pair]
        if (self._first is None and self._first_seeded is None) or records[0] is None or records[1] is None:
            return []
        return list(_differing(records[0], records[1], self._first == 0))

    def _place(self) -> Place | None:
        from unstuck.events import OptimizerSeen

        record = self._pair[0].record_or_none()
        return next((seen.place for seen in record.of(OptimizerSeen)), None) if record is not None else None


def first_difference(one: Outcome, other: Outcome) -> int | None:
    """The first step at which the losses of two runs are not the same number; None if they all are."""
    ours, theirs = (dict(zip(outcome.curve.steps, outcome.curve.losses, strict=True)) for outcome in (one, other))
    return next((step for step in sorted(ours.keys() & theirs.keys()) if ours[step] != theirs[step]), None)


def noise_of(ends: Sequence[float]) -> float | None:
    """The deviation of what runs with different seeds end with, as a share of it."""
    if len(ends) < 2:
        return None
    import statistics  # takes longer to import than all experiments

    mean = math.fsum(ends) / len(ends)
    return statistics.stdev(ends) / abs(mean) if mean else None


def _differing(one: Record, other: Record, from_the_start: bool) -> Iterator[str]:
    """What was different at the first step: seeds, weights, data, or what the model drew itself."""
    from unstuck.events import BatchSeen, LossCall, Seeded, TensorGauges

    seeds_set = [
        [(event.generator, event.seed) for event in record.of(Seeded) if event.seed is not None]
        for record in (one, other)
    ]
    if seeds_set[0] != seeds_set[1]:
        yield "the seed that the script sets"
    weights = [next((gauges.weight_norm for gauges in record.of(TensorGauges)), ()) for record in (one, other)]
    if weights[0] != weights[1]:
        yield "the initial weights"
    data: list[list[object]] = [
        [
            event.target if isinstance(event, LossCall) else event
            for event in record.of(BatchSeen, LossCall)
            if event.step == 0
        ]
        for record in (one, other)
    ]
    if data[0] != data[1]:
        yield "the data of the first step"
    if from_the_start and weights[0] == weights[1] and data[0] == data[1]:
        yield "what the model draws itself (dropout, noise)"


def _noise_in_words(ends: Sequence[float]) -> str:
    noise = noise_of(ends)
    if noise is None:
        return ""
    return (
        f"With {len(ends)} seeds the loss ends between {min(ends):.4g} and {max(ends):.4g}, a deviation of {noise:.1%}."
    )


def _why_nothing(outcome: Outcome) -> str:
    taken = len(outcome.curve.losses)
    if outcome.status is Status.CRASHED:
        return f"It crashed after {taken} steps: {outcome.last_line}"
    return f"Only {taken} steps with a loss were seen, too few to compare."


def _experiment(
    verdict: ExperimentVerdict,
    sentence: str,
    began: float,
    curves: tuple[NamedCurve, ...] = (),
    measures: dict[str, Measure] | None = None,
    place: Place | None = None,
) -> Experiment:
    return Experiment(
        name="seeds",
        verdict=verdict,
        sentence=sentence,
        method=f"the same run twice, twice with every generator seeded alike, and with {SEEDS - 1} other seeds",
        curves=curves,
        measures=measures or {},
        seconds=time.monotonic() - began,
        place=place,
    )
