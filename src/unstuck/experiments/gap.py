"""Does what it learns carry over: to training examples it has not seen, and to the evaluation?

The script's own loop runs twice with a fifth of the training examples kept out. At the end the weights are held, and
the loop is given only what was kept out, or only what was not. How right it is then is compared with the script's own
evaluation. Examples kept out of the same data, by the same code, differ from the others in one thing: they are new.
Measures: `seen`, `unseen` and `evaluated` (how far answers go from a guess to all being right), `steps` (of training).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.experiments import experiment
from unstuck.experiments.isolate import progress
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, Table
from unstuck.interventions import Intervention
from unstuck.interventions.data import HoldOut
from unstuck.trials.loops import loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.record.outcome import Outcome as Achievement
    from unstuck.trials.context import Context

STEPS, FEWEST = 3_000, 60
SHARE = 0.6
"""Of the time that is left."""
SCORED = 60
"""Steps at the end in which answers are scored, at most a quarter of all."""
GOOD = 0.3
"""The part of the way from a guess to perfection from which on training has learned something to carry over."""
HALF = 0.5
"""An evaluation that gets less than this share of what training gets has a gap."""
MOST = 0.75
"""New examples that get this share of what known ones get are answered like them,"""
LITTLE = 0.4
"""and with less than this they are not."""


class Level(msgspec.Struct, frozen=True):
    """How good answers are."""

    gained: float
    """The part of the way from a guess to all being right."""
    words: str


@experiment(
    "does what it learns carry over to new examples, and to the evaluation?",
    """Keep a fifth of the training examples out, and compare how right the script's own loop is
on these, on those it was trained on, and in the script's own evaluation: does the model memorize, or
is the evaluation given other data, or made differently?""",
    order=2,
    applies=lambda done: "seen" in done.measures,
)
def gap(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Train without a fifth of the examples, and compare. Raises `NoTime`."""
    began = time.monotonic()
    own = _as_it_is(context, changes)
    achieved = _achieved(own)
    evaluated = evaluated_level(achieved) if achieved is not None else None
    if achieved is None or evaluated is None:
        return _undecided("No evaluation was seen whose answers can be compared with those of the training.", began)
    trained = trained_level(achieved)
    if trained is None or trained.gained < GOOD:
        return _undecided("The training itself does not get far enough to have anything to carry over.", began)
    if evaluated.gained >= HALF * trained.gained:
        sentence = f"Evaluation gets {evaluated.words}, training {trained.words}: what it learns carries over."
        return _undecided(sentence, began)
    wanted = min(STEPS, len(loop_of(own).curve.losses))
    steps = context.steps_for(2, SHARE, wanted, least=min(FEWEST, wanted))
    scored = min(SCORED, steps // 4)
    context.tell("training without a fifth of the examples, and asking it for these")
    variants = [
        Variant(name, (*changes, HoldOut(steps - scored, unseen)))
        for name, unseen in (("seen-examples", False), ("unseen-examples", True))
    ]
    runs = context.run(variants, steps)
    levels = [level_of(run.notes.get("answers") or {}) for run in runs]
    if not all(run.notes.get("held_out") for run in runs) or None in levels:
        return _undecided(
            "Examples could not be kept out: their numbers are not asked for by a DataLoader, nor used to pick rows of "
            "inputs and targets alike.",
            began,
        )
    seen, unseen = (level for level in levels if level is not None)
    verdict, sentence = judge(seen, unseen, evaluated)
    measures: dict[str, Measure] = {"seen": seen.gained, "unseen": unseen.gained, "evaluated": evaluated.gained}
    rows: list[tuple[Measure, ...]] = [
        ("those it was trained on", seen.words),
        ("training examples that were kept out", unseen.words),
        ("the script's own evaluation", evaluated.words),
    ]
    return Experiment(
        name="gap",
        verdict=verdict,
        sentence=sentence,
        method=(
            f"{steps - scored} steps with a fifth of the training examples kept out, then {scored} steps with the "
            "weights held, through the script's own loop"
        ),
        measures=measures | {"steps": steps - scored},
        table=Table(("answers to", "are right"), tuple(rows), 1),
        place=_place(own),
        seconds=time.monotonic() - began,
    )


def judge(seen: Level, unseen: Level, evaluated: Level) -> tuple[ExperimentVerdict, str]:
    """What the three say."""
    numbers = f"those it was trained on {seen.words}, and the script's own evaluation {evaluated.words}"
    if seen.gained < GOOD:
        return (
            ExperimentVerdict.UNDECIDED,
            f"Without a fifth of its examples the training comes to {seen.words} only, too little to carry over.",
        )
    if unseen.gained < LITTLE * seen.gained:
        return (
            ExperimentVerdict.MEMORIZED,
            f"Training examples that it has not seen get {unseen.words}, {numbers}: it memorizes examples, and nothing "
            "carries over even to its own training data.",
        )
    if unseen.gained >= MOST * seen.gained and evaluated.gained < HALF * unseen.gained:
        return (
            ExperimentVerdict.APART,
            f"Training examples that it has not seen get {unseen.words}, {numbers}: it generalizes, so evaluation is "
            "given other data, or treats them differently.",
        )
    return (
        ExperimentVerdict.UNDECIDED,
        f"Training examples that it has not seen get {unseen.words}, {numbers}: some of it carries over.",
    )


def _as_it_is(context: Context, changes: Sequence[Intervention]) -> Outcome:
    """A run with an evaluation: one there was, or a new one."""
    for outcome in context.outcomes:
        if outcome.variant.name == "watched" and not changes:
            return outcome
    context.tell("running it as it is")
    steps = context.steps_for(1, HALF, STEPS, least=FEWEST)
    return context.run([Variant("as-it-is", tuple(changes), show_data=True)], steps)[0]


def _achieved(run: Outcome) -> Achievement | None:
    from unstuck.record.outcome import outcome_of
    from unstuck.record.trainings import trainings_of

    record = run.record_or_none()
    trainings = trainings_of(record) if record is not None else ()
    if len(trainings) != 1 or loop_of(run).has_several_losses:
        return None
    return outcome_of(trainings[0].record, moving=True if trainings[0].is_shared else None)


def trained_level(achieved: Achievement) -> Level | None:
    """Of the training, by what the watched run shows."""
    if achieved.right is not None and achieved.right_guess is not None and achieved.right_guess < 1:
        return _level(achieved.right, achieved.right_guess, achieved.is_regression)
    gained = achieved.beats_guess_by
    return None if gained is None else Level(gained, f"a loss of {achieved.last:.3g}")


def evaluated_level(achieved: Achievement) -> Level | None:
    """Of its evaluation."""
    if achieved.evaluated_right is not None and achieved.right_guess is not None and achieved.right_guess < 1:
        return _level(achieved.evaluated_right, achieved.right_guess, achieved.is_regression)
    if achieved.evaluated is not None and achieved.guess:
        share = 1 - achieved.evaluated / achieved.guess
        return Level(share, f"a loss of {achieved.evaluated:.3g} (a guess: {achieved.guess:.3g})")
    return None


def _level(right: float, guess: float, is_regression: bool) -> Level:
    if is_regression:
        return Level(right, f"{max(0.0, right):.0%} of the variance explained")
    return Level((right - guess) / (1 - guess), f"{right:.0%} right (a guess: {guess:.0%})")


def level_of(answers: Mapping[str, Any]) -> Level | None:
    """Of the answers that were scored at the end of a run."""
    gained = progress(answers)
    if gained is None or not math.isfinite(gained):
        return None
    right, guess = answers.get("right"), answers.get("guess_right")
    if right is not None and guess is not None:
        return Level(gained, f"{right:.0%} right (a guess: {guess:.0%})")
    return Level(gained, f"{max(0.0, gained):.0%} of the variance explained")


def _place(run: Outcome) -> Any:
    from unstuck.events import Evaluated

    record = run.record_or_none()
    found = list(record.of(Evaluated)) if record is not None else []
    return found[-1].place if found else None


def _undecided(sentence: str, began: float) -> Experiment:
    return Experiment(
        name="gap",
        verdict=ExperimentVerdict.UNDECIDED,
        sentence=sentence,
        method="training, new training examples and evaluation compared",
        seconds=time.monotonic() - began,
    )
