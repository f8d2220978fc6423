"""Which part is at fault? Each in turn is replaced by one that is known to work: update, model, data, loss.

A model of ours is trained by an Adam of ours, and judged by examples that never train it. Data of ours are inputs of
the same shape, type and range with targets that can be learned from them, and new in every step. Runs are judged by
what the answers of the model are worth against a guess, not by their losses, which differ.
Measures: `as_it_is`, `our_update`, `our_model`, `our_data`, `our_loss` and pairs of these: a row of the table each;
`part` (what is cornered, several joined by `+`), `certain` (other seeds agree, and nothing else would explain it),
`scale` (standardised inputs are enough), `update_fails` (our update was tried, and does not help), `still_falls` (the
loss of the run as it is does, so it may only be slow), `seeds`, `steps`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.experiments import experiment, swaps
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, NamedCurve, Status
from unstuck.interventions import Intervention
from unstuck.interventions.change_inputs import ChangeInputs, Inputs
from unstuck.interventions.seeds import Seed
from unstuck.interventions.stand_ins import ScoreAnswers, SwapData, SwapLoss, SwapModel, SwapUpdate
from unstuck.trials.loops import loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.findings.curve import Curve
    from unstuck.record.outcome import Outcome as Achievement
    from unstuck.trials.context import Context

STEPS = 300
FEWEST = 100
SHARE = 0.45
"""Of the time that is left, what the first runs may take."""
OTHER_SEEDS = (1, 2)
CLEAR = 0.15
"""Of the way from a guess to answers that are all right, what a run that learns has gone at least."""
NONE = 0.02
"""Of that way, what a run that does not beat a guess may have gone,"""
LITTLE = 0.1
"""and one whose loss does not fall at all."""
HELD_BACK = 1 / 3
"""Of the progress with a part of ours, what the run as it is may make."""
CERTAIN = 4.0
SETTLED = 0.002
"""Of its loss, what a run that stays where it is may still fall in an eighth of its steps."""
FEWEST_ANSWERS = 40
FEWEST_CALLS = 15
MOST_MISSED = 0.1


class Part(StrEnum):
    """What a program is cut into."""

    UPDATE = "update"
    MODEL = "model"
    DATA = "data"
    LOSS = "loss"


Parts = frozenset[Part]
CHANGES: dict[Part, Intervention] = {
    Part.UPDATE: SwapUpdate(),
    Part.MODEL: SwapModel(),
    Part.DATA: SwapData(),
    Part.LOSS: SwapLoss(),
}
SINGLE: tuple[Parts, ...] = tuple(frozenset({part}) for part in Part)
PAIRS: tuple[Parts, ...] = tuple(
    frozenset(pair)
    for pair in (
        (Part.DATA, Part.UPDATE),
        (Part.UPDATE, Part.LOSS),
        (Part.DATA, Part.MODEL),
        (Part.MODEL, Part.LOSS),
        (Part.DATA, Part.LOSS),
    )
)
"""The least of a change first: a model of ours brings its own update."""
OWN: Parts = frozenset()


class Row(msgspec.Struct, frozen=True):
    """One run of the table."""

    parts: Parts
    gained: float | None
    """Of the way from a guess to answers that are all right."""
    is_stuck: bool
    said: str
    """What it achieved, in words."""
    why_not: str = ""
    """Why the part could not be replaced, if it could not."""
    is_falling: bool = False
    """Does its loss clearly fall, and has not settled? Then more steps may be all that it needs."""
    is_partial: bool = False
    """Was only one of the outputs of the model replaced, so that some of the loss was not tried on ours?"""

    @property
    def works(self) -> bool:
        """Does it clearly learn?"""
        return not self.why_not and self.gained is not None and self.gained >= CLEAR

    def beats(self, own: Row) -> bool:
        """Does it clearly learn, while the run as it is makes hardly any of that progress?"""
        return self.works and (own.gained or 0.0) < HELD_BACK * (self.gained or 0.0)


class Cornered(msgspec.Struct, frozen=True):
    """The smallest part that explains the table."""

    parts: Parts
    sentence: str
    is_single: bool = True
    """Does the table leave one part, and nothing else that would explain it?"""
    helping: tuple[Parts, ...] = ()
    """Rows that have to learn on other seeds, too,"""
    failing: tuple[Parts, ...] = ()
    """and rows that must not."""
    more: tuple[Intervention, ...] = ()
    """What is changed besides, in the first of all rows."""


@experiment(
    "which part is at fault: the data, the model, the loss, the update?",
    """Replace each part of the program by one that is known to work, with the same seeds: the
update (gradients cleared and clipped, Adam at 1e-3), the model (a small one for the same inputs and
outputs), the data (targets that can be learned from inputs of the same shape, type and range), the
loss (the one that fits outputs and targets). The part without which the run learns is at fault.""",
    order=6,
    if_going_well=False,
    if_explained=False,
    applies=lambda done: bool(done.measures.get("as_it_is")),
)
def isolate(context: Context, changes: Sequence[Intervention] = (), wanted: int = STEPS) -> Experiment:
    """Replace one part after the other. Raises `NoTime`."""
    began = time.monotonic()
    steps = context.steps_for(1 + len(SINGLE), SHARE, wanted, least=FEWEST)
    context.tell("running it as it is")
    bench = Bench(context, tuple(changes), steps)
    first = bench.run([OWN])[0]
    problem = swaps.problem_of(first)
    if first.status is Status.KILLED:
        problem = "The run as it is did not finish in time."
    if problem:
        return swaps.undecided("isolate", f"{problem} {_swappable(first)}".strip())
    own = row_of(OWN, first)
    if not own.is_stuck:
        unknown = "; what its answers are worth is not known" if own.gained is None else ""
        sentence = f"As it is the run comes to {own.said} after {steps} steps{unknown}: nothing to corner."
        return _experiment(bench, {OWN: own}, ExperimentVerdict.LEARNS, sentence, {}, began)
    context.tell("replacing update, model, data and loss, one at a time")
    rows = {OWN: own} | {parts: row_of(parts, run) for parts, run in bench.runs([*SINGLE]).items()}
    cornered = corner(rows)
    if cornered is None:
        able = [pair for pair in PAIRS if not any(rows[frozenset({part})].why_not for part in pair)]
        if able and context.has_time_for(len(able), steps):
            context.tell("replacing two parts at a time")
            rows |= {parts: row_of(parts, run) for parts, run in bench.runs(able).items()}
            cornered = corner_pair(rows)
    if cornered is None:
        return _experiment(bench, rows, ExperimentVerdict.UNDECIDED, _nothing(rows, steps), {}, began)
    scaled = scale_of_inputs(bench, own) if cornered.parts == {Part.MODEL} else None
    cornered = scaled or cornered
    seeds = _confirmed(bench, cornered)
    if seeds is None:
        sentence = f"On one seed: {cornered.sentence} On another one the table does not say so."
        return _experiment(bench, rows, ExperimentVerdict.UNDECIDED, sentence, {}, began)
    measures: dict[str, Measure] = {"part": "+".join(sorted(cornered.parts)), "scale": scaled is not None}
    measures |= {"certain": cornered.is_single and seeds > 1 and not own.is_falling, "seeds": seeds}
    update = rows[frozenset({Part.UPDATE})]
    measures |= {"update_fails": not update.why_not and not update.works}
    sentence = _of_slow(cornered, steps) if own.is_falling else cornered.sentence
    return _experiment(bench, rows, ExperimentVerdict.CORNERED, sentence, measures, began)


class Bench:
    """Runs of one program with parts of ours."""

    def __init__(self, context: Context, changes: Sequence[Intervention], steps: int) -> None:
        self.context, self.changes, self.steps = context, tuple(changes), steps
        self.curves: list[NamedCurve] = []

    def run(self, wanted: Sequence[Parts], seed: int = 0, more: Sequence[Intervention] = ()) -> list[Outcome]:
        """The program with these parts replaced."""
        variants = [
            Variant(
                f"{'-'.join(sorted(parts)) or 'nothing'}-replaced-seed{seed}",
                (Seed(seed), *self.changes, ScoreAnswers(), *more, *(CHANGES[part] for part in sorted(parts))),
            )
            for parts in wanted
        ]
        return self.context.run(variants, self.steps)

    def runs(self, wanted: Sequence[Parts]) -> dict[Parts, Outcome]:
        """The same by the parts, on the first seed."""
        found = dict(zip(wanted, self.run(wanted), strict=True))
        self.curves += [NamedCurve(named(parts), loop_of(run).curve) for parts, run in found.items() if len(parts) == 1]
        return found


def named(parts: Iterable[Part]) -> str:
    """`our model and our data`"""
    return " and ".join(f"our {part}" for part in sorted(parts)) or "as it is"


def row_of(parts: Parts, run: Outcome) -> Row:
    """What a run with parts of ours achieved."""
    from unstuck.record.outcome import Achieved

    why_not = next((why for part in sorted(parts) if (why := _why_not(part, run))), "")
    if why_not:
        return Row(parts, None, False, f"cannot be replaced: {why_not}", why_not)
    achieved = _achieved(run)
    gained = progress(run.notes.get("answers") or {})
    if gained is None and achieved is not None and Part.MODEL not in parts:
        gained = achieved.beats_guess_by  # a model of ours may have memorized its examples
    gained = 0.0 if loop_of(run).curve.is_broken else gained
    word = achieved.word if achieved is not None else Achieved.UNCLEAR
    # A loss that falls says little where what its answers are worth is not part of that judgement.
    is_known = achieved is not None and (achieved.beats_guess_by is not None or achieved.right is not None)
    learns = word in (Achieved.LEARNS, Achieved.SLOWLY, Achieved.MEMORIZES) and (is_known or gained is None)
    is_stuck = word.is_trouble or (not learns and gained is not None and gained < NONE)
    # Weights that were drawn at random may beat a guess a little, and stay where they are.
    moves = achieved is None or achieved.trend is None or achieved.trend.falls
    is_stuck = is_stuck or (not moves and gained is not None and gained < LITTLE)
    # A run that came down to a guess, and stays there.
    is_stuck = is_stuck or (gained is not None and abs(gained) < NONE and has_settled(loop_of(run).curve))
    is_partial = bool((run.notes.get(Part.MODEL) or {}).get("partial"))
    is_falling = achieved is not None and achieved.trend is not None and achieved.trend.falls
    is_falling = is_falling and not has_settled(loop_of(run).curve) and not loop_of(run).curve.is_broken
    said = _said(run, achieved, gained)
    return Row(parts, gained, is_stuck, said, is_falling=is_falling, is_partial=is_partial)


def has_settled(curve: Curve) -> bool:
    """Is its last eighth no lower than the one before?"""
    values = curve.finite
    size = len(values) // 8
    if size < 5 or curve.is_broken:
        return False
    before, last = (math.fsum(part) / size for part in (values[-2 * size : -size], values[-size:]))
    return before - last < SETTLED * abs(before)


def _achieved(run: Outcome) -> Achievement | None:
    """By the first training of the program, as everything else here."""
    from unstuck.record.outcome import outcome_of
    from unstuck.record.trainings import trainings_of

    record = run.record_or_none()
    trainings = trainings_of(record) if record is not None else ()
    number = loop_of(run).number
    if not trainings:
        return None
    training = trainings[min(number, len(trainings) - 1)]
    return outcome_of(training.record, moving=True if training.is_shared else None)


def progress(answers: Mapping[str, Any]) -> float | None:
    """How far answers have come from a guess to all being right; None if that is not known well enough.

    By what they cost, or by how many are right, whichever is more: a loss of the script's own need not make outputs
    that are probabilities.
    """
    cost, guess, count = answers.get("cost"), answers.get("guess"), answers.get("answers") or 0
    if cost is None or count < FEWEST_ANSWERS or (answers.get("calls") or 0) < FEWEST_CALLS:
        return None
    ways = [] if not guess or guess <= 0 else [1 - cost / guess]
    right, by_chance = answers.get("right"), answers.get("guess_right")
    if right is not None and by_chance is not None and by_chance < 1:
        error = math.sqrt(by_chance * (1 - by_chance) / count)
        ways.append((right - by_chance) / (1 - by_chance) if right - by_chance > CERTAIN * error else 0.0)
    return max(ways, default=None)


def _said(run: Outcome, achieved: Achievement | None, gained: float | None) -> str:
    """`91 % right (a guess: 12 %)`"""
    answers = run.notes.get("answers") or {}
    right, by_chance = answers.get("right"), answers.get("guess_right")
    broken = ", then NaN" if loop_of(run).curve.is_broken else ""
    if right is not None and by_chance is not None and answers.get("answers"):
        return f"{right:.0%} right (a guess: {by_chance:.0%}){broken}"
    if answers.get("guess"):
        return f"{max(0.0, gained or 0.0):.0%} of the variance explained{broken}"
    end, guess = loop_of(run).curve.end, achieved.guess if achieved is not None else None
    words = "no loss" if end is None else f"a loss of {end:.3g}"
    return f"{words}{f' (a guess costs {guess:.3g})' if guess is not None else ''}{broken}"


def _why_not(part: Part, run: Outcome) -> str:
    """Why a part of this run is the script's own after all; empty if it is not."""
    notes = run.notes.get(part) or {}
    if notes.get("why"):
        return str(notes["why"])
    swapped, missed = int(notes.get("swapped") or 0), int(notes.get("missed") or 0)
    if run.status is Status.CRASHED:
        return f"the script failed with it ({run.last_line[:80]})"
    if run.status in (Status.KILLED, Status.FAILED):
        return "it did not finish in time" if run.status is Status.KILLED else "the run could not be started"
    if not swapped or missed > MOST_MISSED * (swapped + missed):
        return "it was not met in every step"
    if part is Part.MODEL and not (run.notes.get("answers") or {}).get("answers"):
        return "what its answers are worth could not be measured"
    return ""


def corner(rows: Mapping[Parts, Row]) -> Cornered | None:
    """The smallest part that explains which of the single replacements help; None if none does.

    If the run learns with our update, its data, model and loss are fine, and so on; and if our model learns its data,
    it does not count that its own model learns simpler ones.
    """
    own = rows[OWN]
    helps = {part for part in Part if rows[frozenset({part})].beats(own)}
    model = rows[frozenset({Part.MODEL})]
    if Part.UPDATE in helps and Part.LOSS in helps:
        sentence = (
            "Our update helps, and so does our loss: the fault is where they meet, such as a loss whose scale does not "
            "suit the learning rate."
        )
        return Cornered(
            frozenset({Part.UPDATE, Part.LOSS}), sentence, False, (frozenset({Part.UPDATE}), frozenset({Part.LOSS}))
        )
    if Part.UPDATE in helps:
        sentence = (
            "Your model learns your data by your loss with our update, and not with yours: the fault is in the update, "
            "that is the optimizer, its settings, its schedule, or the gradients and parameters it is given."
        )
        return Cornered(frozenset({Part.UPDATE}), sentence, helping=(frozenset({Part.UPDATE}),))
    if Part.MODEL in helps and Part.LOSS in helps and not model.is_partial:
        sentence = (
            "Our model helps, and so does our loss: model and loss each work, but do not fit each other, such as an "
            "activation before a loss that has its own."
        )
        return Cornered(
            frozenset({Part.MODEL, Part.LOSS}), sentence, False, (frozenset({Part.MODEL}), frozenset({Part.LOSS}))
        )
    if Part.LOSS in helps:
        sentence = (
            "Your model learns your data by the loss that fits its outputs and targets, and not by yours: the fault is "
            "in the loss."
        )
        return Cornered(frozenset({Part.LOSS}), sentence, helping=(frozenset({Part.LOSS}),))
    if Part.MODEL in helps and model.is_partial and rows[frozenset({Part.LOSS})].why_not:
        sentence = (
            "Our model learns your data and yours does not; but yours returns more than one output, and only one of "
            "them is replaced: the fault is in the model, or in what the loss makes of the others."
        )
        return Cornered(frozenset({Part.MODEL, Part.LOSS}), sentence, False, (frozenset({Part.MODEL}),))
    if Part.MODEL in helps:
        update = rows[frozenset({Part.UPDATE})]
        with_ours = ", with your update or ours"
        if update.why_not or update.works:
            with_ours = "" if update.why_not else f", and only a little with our update ({update.said})"
        sentence = f"Our model learns your data by your loss; yours does not{with_ours}: the fault is in the model."
        return Cornered(frozenset({Part.MODEL}), sentence, helping=(frozenset({Part.MODEL}),))
    if Part.DATA in helps and not model.why_not and not model.works:
        sentence = (
            "With our data the rest learns; with your data nothing does, not even our model: the fault is in the "
            "inputs, the labels, or how they are matched, unless the task needs far more steps or another kind of "
            "model."
        )
        return Cornered(
            frozenset({Part.DATA}), sentence, helping=(frozenset({Part.DATA}),), failing=(frozenset({Part.MODEL}),)
        )
    if Part.DATA in helps:
        untried = "could not be tried on them" if model.why_not else f"learns little from them ({model.said})"
        sentence = (
            "With our data the rest learns, and with yours it does not: either the fault is in the inputs, the "
            f"labels, or how they are matched, or the model cannot learn what your data need; our model {untried}."
        )
        return Cornered(frozenset({Part.DATA, Part.MODEL}), sentence, False, (frozenset({Part.DATA}),))
    return None


def corner_pair(rows: Mapping[Parts, Row]) -> Cornered | None:
    """The same where no single replacement helps."""
    own = rows[OWN]
    for pair in PAIRS:
        if pair in rows and rows[pair].beats(own):
            both = " and ".join(sorted(pair))
            sentence = f"No single part of ours helps; {named(pair)} together do: the faults are in the {both}."
            return Cornered(pair, sentence, False, (pair,))
    for part, rest, sentence in ELIMINATED:
        left = rows.get(rest)
        if rows[frozenset({part})].why_not and left is not None and left.is_stuck:
            return Cornered(frozenset({part}), sentence, False, failing=(rest,))
    return None


ELIMINATED = (
    (
        Part.LOSS,
        frozenset({Part.DATA, Part.MODEL}),
        "Not even our model learns our data by your loss, which could not be replaced: by elimination the fault is in "
        "the loss.",
    ),
    (
        Part.DATA,
        frozenset({Part.MODEL, Part.LOSS}),
        "Not even our model learns your data by the loss that fits them; the data could not be replaced: by "
        "elimination the fault is in the inputs, the labels, or how they are matched.",
    ),
)
"""What is left where everything else is ours, and why."""


def _of_slow(cornered: Cornered, steps: int) -> str:
    """What to say where the loss of the run as it is still falls."""
    if cornered.parts == {Part.UPDATE}:
        return (
            "Your model learns your data more slowly than with our update: as it is, the loss still falls after "
            f"{steps} steps. What makes it slow is in the update, that is the optimizer, its settings, its schedule, "
            "or the gradients and parameters it is given."
        )
    return f"{cornered.sentence} As it is, the loss still falls after {steps} steps: the run may only be slow."


def scale_of_inputs(bench: Bench, own: Row) -> Cornered | None:
    """Does the script's own model learn once its inputs have mean 0 and deviation 1?"""
    change = ChangeInputs(Inputs.STANDARDISED)
    run = bench.run([OWN], more=[change])[0]
    if not (run.notes.get("inputs") or {}).get("changed") or not row_of(OWN, run).beats(own):
        return None
    sentence = (
        "Your model learns your data once its inputs are brought to mean 0 and deviation 1; as they are, only our "
        "model does, which does that itself: the fault is in the scale of the inputs."
    )
    return Cornered(frozenset({Part.DATA}), sentence, more=(change,))


def _confirmed(bench: Bench, cornered: Cornered) -> int | None:
    """How many seeds show it; None if one of them shows something else."""
    wanted = [OWN, *cornered.helping, *cornered.failing]
    count = 1
    for seed in OTHER_SEEDS:
        if not bench.context.has_time_for(len(wanted) + bool(cornered.more), bench.steps):
            break
        bench.context.tell(f"repeating what decides on seed {seed}")
        rows = {parts: row_of(parts, run) for parts, run in zip(wanted, bench.run(wanted, seed), strict=True)}
        others = [row_of(OWN, run) for run in bench.run([OWN], seed, cornered.more)] if cornered.more else []
        helping = [*(rows[parts] for parts in cornered.helping), *others]
        own = rows[OWN]
        if any(row.why_not for row in rows.values()):
            break
        if not all(row.beats(own) for row in helping) or any(rows[parts].beats(own) for parts in cornered.failing):
            return None
        count += 1
    return count


def _nothing(rows: Mapping[Parts, Row], steps: int) -> str:
    tried = [parts for parts in rows if parts and not rows[parts].why_not]
    if not tried:
        return "No part of this program could be replaced."
    best = max(tried, key=lambda parts: rows[parts].gained or 0.0)
    return (
        f"After {steps} steps no part of ours makes the run learn: at best {rows[best].said} with {named(best)}, and "
        f"{rows[OWN].said} as it is."
    )


def _swappable(run: Outcome) -> str:
    """Where runs cannot be compared: what could be replaced, and what not."""
    answers = run.notes.get("answers")
    if not answers:
        return "Nor is there a target that its outputs are compared with, so model, data and loss could not be judged."
    return ""


def _experiment(
    bench: Bench,
    rows: Mapping[Parts, Row],
    verdict: ExperimentVerdict,
    sentence: str,
    measures: Mapping[str, Measure],
    began: float,
) -> Experiment:
    table: dict[str, Measure] = {
        named(parts).replace(" ", "_"): f"{_word(row)}{row.said}" for parts, row in rows.items()
    }
    unable = [f"The {part} {rows[frozenset({part})].said}." for part in Part if _is_unable(rows, part)]
    numbers = "" if not measures else f" After {bench.steps} steps: {_numbers(rows, measures)}."
    seeds = measures.get("seeds") or 1
    falls: dict[str, Measure] = {} if verdict is ExperimentVerdict.LEARNS else {"still_falls": rows[OWN].is_falling}
    return Experiment(
        name="isolate",
        verdict=verdict,
        sentence=sentence + numbers,
        method=f"{bench.steps} steps each, {seeds} seed{'s' if seeds != 1 else ''}, nothing else changed",
        curves=tuple(bench.curves),
        measures=table | dict(measures) | falls | {"steps": bench.steps},
        caveats=tuple(unable),
        seconds=time.monotonic() - began,
    )


def _is_unable(rows: Mapping[Parts, Row], part: Part) -> bool:
    return frozenset({part}) in rows and bool(rows[frozenset({part})].why_not)


def _word(row: Row) -> str:
    if row.why_not:
        return ""
    return "learns: " if row.works else "does not learn: " if row.is_stuck else "hardly learns: "


def _numbers(rows: Mapping[Parts, Row], measures: Mapping[str, Measure]) -> str:
    told = [parts for parts in rows if parts == OWN or (rows[parts].works and not rows[parts].why_not)]
    return "; ".join(f"{rows[parts].said} {'as it is' if parts == OWN else 'with ' + named(parts)}" for parts in told)
