"""Relations that must hold whatever the model is, tested on the script's own loop and batch.

One run looks at the first batches as the loss sees them. In another the batch is frozen and the weights are put back
after every step, so that each iteration answers one question: the loss a little along the optimizer's own step, or with
a part of the inputs exchanged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import EpisodesEnded
from unstuck.experiments import experiment
from unstuck.experiments.independence import why_nothing
from unstuck.findings.relations import Answer, Relation, State, worst
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.interventions import Intervention
from unstuck.interventions.data import FreezeBatch
from unstuck.interventions.probe_model import ProbeBatch, ProbeLoop
from unstuck.interventions.stop_after import StopAfter
from unstuck.trials.context import NoTime
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.trials.context import Context

WATCHED = 200
"""Steps of the first run, which also shows whether the program learns."""
ASKED = 120
"""Iterations in which questions are asked."""
FEWEST = 12
SLOW = ((20, 8.0), (1, 20.0))
"""Of a slow program so many steps are enough, once so many seconds have passed."""
LONGEST = 30.0
SHARE = 0.4
METHOD = (
    "one run in which the first batches were tested as the loss sees them, and one with its batch frozen, in which "
    "weights were put back after every step"
)


@experiment(
    "does what must hold for any model hold for this one?",
    """Test relations that must hold whatever the model is, inside the script's own loop: a step lowers the
loss of its batch, the loss falls towards the targets, every input matters, the targets can be reached,
the order of a sequence matters, targets are aligned with inputs, padding does not matter, pixels lie
next to their neighbours, evaluation gives the same answers twice and as good ones as training mode,
targets move with their images, no batch leaves a state behind for the next.""",
    order=9,
    takes_several_runs=False,
    only_certain_if_going_well=True,
    tries_remedies=True,
)
def relations(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Test them all. Raises `NoTime`.

    Measures: `holds`, `broken`, `untested` (how many), `outcome` (what the run achieved meanwhile).
    """
    began = time.monotonic()
    watched = context.steps_for(2, SHARE, WATCHED, least=1)
    context.tell("testing predictions, targets and inputs of the first batches")
    enough = tuple(StopAfter(watched, steps, seconds) for steps, seconds in SLOW)
    batch = context.run([Variant("batch", (*changes, ProbeBatch(), *enough))], watched)[0]
    record = batch.record_or_none()
    plays = record is not None and any(True for _ in record.of(EpisodesEnded))
    answers = reconciled((*_asked(context, changes), *_noted(batch)), plays)
    verdict, sentence = _answer(answers, batch)
    counts = {state: sum(one.state is state for one in _each(answers)) for state in State}
    outcome = _achieved(batch)
    return Experiment(
        name="relations",
        verdict=verdict,
        sentence=sentence,
        method=METHOD,
        measures={
            "holds": counts[State.HOLDS],
            "broken": counts[State.BROKEN],
            "untested": counts[State.DOES_NOT_APPLY],
            "outcome": outcome,
        },
        seconds=time.monotonic() - began,
        place=next((one.place for one in answers if one.state is State.BROKEN), None),
        relations=answers,
    )


def _asked(context: Context, changes: Sequence[Intervention]) -> tuple[Answer, ...]:
    """What the loop answers, if there is time to ask it."""
    try:
        asked = context.steps_for(1, SHARE, ASKED, least=FEWEST)
    except NoTime:
        return ()
    context.tell("asking the loop for its loss with weights and inputs changed a little")
    until = StopAfter(asked, FEWEST, LONGEST)
    return _noted(context.run([Variant("loop", (*changes, FreezeBatch(), ProbeLoop(), until))], asked)[0])


def _noted(outcome: Outcome) -> tuple[Answer, ...]:
    try:
        return tuple(msgspec.convert(outcome.notes.get("relations") or [], list[Answer]))
    except msgspec.ValidationError:  # such as a number that is not finite, which JSON does not have
        return ()


def _each(answers: tuple[Answer, ...]) -> list[Answer]:
    """The answer that counts for each relation that was asked about."""
    return [one for relation in Relation if (one := worst(answers, relation)) is not None]


def reconciled(answers: tuple[Answer, ...], plays: bool = False) -> tuple[Answer, ...]:
    """A loss that points away from the targets and is made to rise is an objective, and both are right; one of a
    program that plays in an environment may have its own actions as targets."""
    uphill = [one for one in answers if one.relation is Relation.DESCENT and one.form == "uphill"]
    away = [one for one in answers if one.relation is Relation.TARGETS and one.form == "away"]
    towards = worst(answers, Relation.TARGETS)
    if uphill and away:
        return tuple(_holding(one) if one in uphill or one in away else one for one in answers)
    if plays and away:
        answers = tuple(_untested(one, PLAYED) if one in away else one for one in answers)
        towards = worst(answers, Relation.TARGETS)
    asked_for = [one for one in uphill if one.measures.get("maximizes")]
    if towards is None or towards.state is not State.HOLDS:
        return tuple(_untested(one, MAXIMIZED) if one in asked_for else one for one in answers)
    return answers


def _holding(answer: Answer) -> Answer:
    sentence = f"{answer.sentence} It is an objective that rises towards the targets, and is maximized."
    return msgspec.structs.replace(answer, state=State.HOLDS, form="", sentence=sentence)


MAXIMIZED = "The optimizer is asked to maximize it."
PLAYED = "The program plays in an environment, and targets may be actions of its own."


def _untested(answer: Answer, why: str) -> Answer:
    sentence = f"{answer.sentence} {why}"
    return msgspec.structs.replace(answer, state=State.DOES_NOT_APPLY, form="", sentence=sentence)


def _answer(answers: tuple[Answer, ...], batch: Outcome) -> tuple[ExperimentVerdict, str]:
    each = _each(answers)
    broken = [one for one in each if one.state is State.BROKEN]
    holding = [one for one in each if one.state is State.HOLDS]
    if broken:
        return ExperimentVerdict.BROKEN, broken[0].sentence
    if holding:
        names = "; ".join(one.relation for one in holding)
        return ExperimentVerdict.HOLDING, f"{len(holding)} of {len(each)} relations apply, and hold: {names}."
    if each:
        return ExperimentVerdict.UNDECIDED, "None of the relations could be tested."
    return ExperimentVerdict.UNDECIDED, why_nothing(batch)


def _achieved(outcome: Outcome) -> str:
    """What the run achieved while it was looked at; empty if that is not known."""
    from unstuck.record.outcome import outcome_of

    record = outcome.record_or_none()
    achieved = outcome_of(record) if record is not None else None
    return achieved.word if achieved is not None else ""
