"""Where is the information lost? How well the target can be read from the inputs and from every module's output.

The script's own loop runs twice: once with the weights held from the start, once trained for a while and held then.
Readers in closed form are fitted on some of the examples that it meets and judged on the others; the same is done with
targets exchanged between examples, so that chance is known.
Measures: `inputs` (the share of the target's variance that can be read from the inputs), `chance` (a share that
exchanged targets do not reach), `examples`, `lost_at`, `since` (was it lost before training or in it), `reader_right`,
`own_right` and `guess_right` (how often reader, model and a guess are right; for numbers the share of variance
explained), `steps` (of training).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Place
from unstuck.experiments import experiment
from unstuck.experiments.independence import why_nothing
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, Status, Table
from unstuck.interventions import Intervention
from unstuck.interventions.probe_model import ReadLayers
from unstuck.interventions.stop_after import StopAfter
from unstuck.record.goals import may_rise
from unstuck.trials.context import NoTime
from unstuck.trials.loops import loop_of
from unstuck.trials.runner import Outcome, Variant

if TYPE_CHECKING:
    from unstuck.trials.context import Context

TRAINED, GATHERED = 250, 120
"""Steps of training, and those in which examples are gathered."""
FEWEST = 30
SHARE = 0.3
READING = 8.0
"""Seconds that reading usually takes."""
EXTRA = 20.0
"""Seconds that it may take."""
WORTH_NAMING = 0.1
"""The share of the target that must be readable somewhere before a module can lose it."""
GONE = 0.1
"""A place where less than this share of the best can be read is one that has lost it."""
FAIR = 0.5
"""As few random combinations of what came before must keep this share, or the module is just narrow."""
ALIKE = 1e-5
ENOUGH = 200
"""Examples from which on "nothing can be read" is said."""
VISIBLE = 0.1
"""A share that would have shown, for that to be said."""
FEW = 60
"""Examples, below which nothing is said at all."""
FAR = 0.25
"""The part of the way from a guess to perfection that a reader must go to be far better than a model that goes none."""
AWAY = 0.25
"""And the model's answer must show less than this share of what the inputs show."""
NEGLIGIBLE = 0.05
"""What a model's answer shows of a target that the inputs do not show, and may owe to the batch or to positions."""
INPUTS = "inputs"
PREDICTION = "the prediction"
"""What the loss is given, if it is not the output of a module."""


class Spot(msgspec.Struct, frozen=True):
    """One place in the forward pass. The first is the inputs, whose name is empty."""

    name: str
    kind: str = ""
    module: str = ""
    """What it is an output or an input of; which of several outputs does not matter."""
    is_input: bool = False
    """Is it what the module was given, made by an operation that is not a module?"""
    shape: tuple[int, ...] = ()
    place: Place | None = None
    score: float | None = None
    chance: float = 0.0
    error: float = 0.0
    alike: float | None = None
    """By how much examples differ, as a share of the scale of the numbers."""
    control: float | None = None
    """What as few random combinations of what came before would keep of it."""
    should_learn: bool = False
    """Are weights of the module in an optimizer?"""
    learns: bool = False
    """Has any of them had a gradient?"""
    is_zero: bool = False
    wants_gradient: bool = False
    gradient: float | None = None
    gradient_varies: bool | None = None

    @property
    def text(self) -> str:
        """Its name in a sentence."""
        if not self.name or self.name == PREDICTION:
            return self.name or "the inputs"
        if self.is_input:
            return f"the input of `{self.module}`"
        return f"`{self.module}`" if self.kind == self.module else f"`{self.module}` ({self.kind})"

    @property
    def is_alike(self) -> bool:
        """Are the numbers the same for all examples?"""
        return self.alike is not None and self.alike < ALIKE

    @property
    def row(self) -> str:
        """Its name in a table."""
        named = not self.name or self.is_input or self.kind == self.name
        return (self.name or INPUTS) if named else f"{self.name} ({self.kind})"


class Score(msgspec.Struct, frozen=True):
    """How much can be read."""

    score: float
    chance: float
    error: float = 0.0

    @property
    def is_readable(self) -> bool:
        """Is it more than chance?"""
        return self.score > self.chance


class Reading(msgspec.Struct, frozen=True):
    """What was read in one trial: the note `layers`."""

    why: str = ""
    """Why nothing was."""
    loss: str = ""
    is_classes: bool = False
    items: int = 0
    examples: int = 0
    positions: tuple[int, ...] = ()
    steps: int = 0
    varies: bool = False
    inputs: Score | None = None
    reader_right: float | None = None
    own_right: float | None = None
    guess_right: float | None = None
    sites: tuple[Spot, ...] = ()

    @property
    def judged(self) -> list[Spot]:
        """The places that could be read, in the order of the forward pass."""
        return [spot for spot in self.sites if spot.score is not None]

    @property
    def answer(self) -> float:
        """The share of the target that can be read from the last place; 0 if it is chance."""
        last = self.judged[-1:]
        found = last[0].score or 0.0 if last and last[0].name else 0.0
        return found if last and found > last[0].chance else 0.0


class Loss(msgspec.Struct, frozen=True):
    """Where the target was readable last, and where it is not any more."""

    before: Spot
    at: Spot
    number: int
    """Of `at` among the judged places."""


def _applies(done: Experiment) -> bool:
    """It says nothing about a program without a target."""
    return done.verdict is not ExperimentVerdict.UNDECIDED or "inputs" in done.measures


@experiment(
    "where in the model does the target stop being readable?",
    """Read the target from the inputs and from the output of every module with simple readers,
before and after some training in the script's own loop, and name the place where it is lost.""",
    order=1,
    if_going_well=False,
    applies=_applies,
)
def layers(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Gather examples with the weights held, before and after training, and read the target. Raises `NoTime`."""
    began = time.monotonic()
    total = context.steps_for(2, SHARE, TRAINED + GATHERED, least=FEWEST)
    needed = _needed(context, 2, total)
    if needed > context.left:
        raise NoTime(needed, context.budget - context.seconds)
    context.tell("reading the target from the inputs and from every module")
    gathered = min(GATHERED, total // 2)
    untrained = Variant("layers-untrained", (*changes, ReadLayers(0), StopAfter(gathered)))
    first, second = context.run([untrained, _trained(changes, total - gathered)], total, extra=EXTRA)
    taken = len(second.curve.losses)
    ended = second.status in (Status.FINISHED, Status.EXITED)
    is_missing = ended and taken >= FEWEST and not reading_of(second).items and reading_of(first).items
    if is_missing and _needed(context, 1, taken) <= context.left:
        (second,) = context.run([_trained(changes, taken // 2)], taken, extra=EXTRA)
    answer = _judge(first, second)
    return msgspec.structs.replace(answer, seconds=time.monotonic() - began)


def _needed(context: Context, runs: int, steps: int) -> float:
    """Seconds: each round of runs at once is read by itself."""
    return context.needed(runs, steps) + READING * math.ceil(runs / context.runner.jobs)


def _trained(changes: Sequence[Intervention], first: int) -> Variant:
    return Variant("layers-trained", (*changes, ReadLayers(first)))


def reading_of(outcome: Outcome) -> Reading:
    """Its note; an empty one if there is none that can be read."""
    note = outcome.notes.get("layers")
    try:
        return msgspec.convert(msgspec.to_builtins(note), Reading) if note is not None else Reading()
    except msgspec.ValidationError:  # such as a number that is not finite, which JSON does not have
        return Reading()


def _judge(first: Outcome, second: Outcome) -> Experiment:
    before, after = reading_of(first), reading_of(second)
    why = _problem(first, before)
    if why:
        return _answer(ExperimentVerdict.UNDECIDED, why, before, after)
    assert before.inputs is not None
    caveats = [] if after.inputs is not None else [_untrained_only(second, after)]
    seen = _examples(before)
    chance = max(before.inputs.chance, after.inputs.chance if after.inputs else 0.0)
    if not before.inputs.is_readable and (after.inputs is None or not after.inputs.is_readable):
        return _nothing_read(before, after, chance, caveats)
    lost_first, lost_later = lost(before), lost(after) if after.inputs is not None else None
    share = max(before.inputs.score, after.inputs.score if after.inputs else 0.0)
    if lost_later is not None:
        return describe_loss(before, after, lost_first, lost_later, caveats)
    blocked = blocked_at(before, after) if after.inputs is not None else None
    if blocked is not None:
        from_there, last = blocked
        sentence = (
            f"No gradient comes past {from_there.text}: {last.text} and everything before it receives none, in "
            "training as at the start, though the modules there have weights that should learn."
        )
        measures: dict[str, Measure] = {"blocked_at": from_there.module, "blocked": last.name}
        return _answer(
            ExperimentVerdict.BLOCKED, sentence, before, after, caveats, measures, from_there.place or last.place
        )
    can = f"{share:.0%} of the target can be read from the inputs ({seen}; chance is below {chance:.0%})"
    skill = _skills(after)
    weak = after.inputs is not None and after.answer < AWAY * after.inputs.score and not _improves(before, after)
    if skill is not None and weak and skill[0] > FAR and skill[1] < GONE * skill[0]:
        right = "right" if after.is_classes else "of the variance"
        return _answer(
            ExperimentVerdict.BEATEN,
            f"A simple reader gets {after.reader_right:.0%} {right} on held-out examples; the model, after "
            f"{_training(after)}, gets {after.own_right:.0%} on those it was trained on (a guess: "
            f"{after.guess_right:.0%}). The data can be learned from: look at the model, the loss and the update.",
            before,
            after,
            caveats,
        )
    if after.inputs is None or not after.answer:
        ends = (after if after.inputs is not None else before).judged[-1:]
        where = f", and {max(0.0, ends[0].score or 0.0):.0%} from {ends[0].text}" if ends and ends[0].name else ""
        return _answer(ExperimentVerdict.UNDECIDED, f"{can}{where}; no single place loses it.", before, after, caveats)
    return _answer(ExperimentVerdict.READABLE, f"{can}, and from what the model answers.", before, after, caveats)


def lost(reading: Reading) -> Loss | None:
    """The first place after which the target can nowhere be read, though it could before."""
    judged = reading.judged
    if len(judged) < 2:
        return None
    top = max(judged, key=lambda spot: spot.score or 0.0)
    best = top.score or 0.0
    if best < max(WORTH_NAMING, 2 * top.chance):
        return None
    number = max(i for i, spot in enumerate(judged) if (spot.score or 0.0) > max(spot.chance, GONE * best)) + 1
    if number >= len(judged):
        return None
    before, at = judged[number - 1], judged[number]
    # What returns several things, such as a mean and a variance, need keep the target in one of them only.
    kept = {spot.name for spot in judged[1:number]}
    if all(spot.name in kept or spot.name == PREDICTION for spot in judged[number:]):
        return None
    # Weights of zero are a way to begin: nothing comes through before the first step.
    if any(spot.is_zero for spot in judged[number:]):
        return None
    fair = at.control is not None and at.control >= max(2 * at.chance, FAIR * (before.score or 0.0))
    return Loss(before, at, number) if fair or at.is_alike else None


def blocked_at(before: Reading, after: Reading) -> tuple[Spot, Spot] | None:
    """The first place, from the inputs, that a gradient reaches, and the last before it; None if nothing that should
    learn lies before it, or if it gets one at another time."""
    found = []
    for reading in (before, after):
        spots = [spot for spot in reading.sites if spot.name]
        reached = next((index for index, spot in enumerate(spots) if spot.gradient), None)
        cut_off = [spot for spot in spots[: reached or 0] if spot.should_learn and spot.wants_gradient]
        if not reached or not cut_off or any(spot.learns for spot in spots[:reached]):
            return None
        found.append((spots[reached], spots[reached - 1]))
    return found[1] if found[0][0].name == found[1][0].name else None


def _problem(first: Outcome, before: Reading) -> str:
    """Why nothing can be said, if nothing can."""
    record = first.record_or_none()
    if record is not None and loop_of(first).has_several_losses:
        return "Several optimizers step, and each may have a loss of its own."
    if record is not None and may_rise(record):
        return "The goal of this loss moves with the model, so there is no target to read."
    if before.why:
        return f"It does not apply: {before.why}."
    if not before.items:
        if first.status in (Status.CRASHED, Status.KILLED, Status.FAILED):
            return why_nothing(first)
        return "It does not apply: no loss was seen that compares what a model computed with a target."
    if not before.varies:
        return f"The targets of the first {before.steps} steps are all the same, so there is nothing to read."
    if before.inputs is None or before.examples < FEW:
        return f"Only {before.examples} different examples were met, too few to read anything from."
    return ""


def _untrained_only(second: Outcome, after: Reading) -> str:
    why = after.why or ("it crashed" if second.status is Status.CRASHED else "too few examples were met")
    return f"After training nothing could be read: {why}."


def _nothing_read(before: Reading, after: Reading, chance: float, caveats: list[str]) -> Experiment:
    assert before.inputs is not None
    tried = f"Nothing about the target can be read from the inputs of {_examples(before)}"
    shows = f"a share of {chance:.0%} would have shown"
    if after.inputs is not None and after.answer > NEGLIGIBLE:
        return _answer(
            ExperimentVerdict.UNDECIDED,
            f"{tried} by simple readers ({shows}), but the model's answers show it: it has memorized them, or sees "
            "what simple readers cannot.",
            before,
            after,
            caveats,
        )
    if before.examples < ENOUGH or chance > VISIBLE or after.inputs is None:
        return _answer(ExperimentVerdict.UNDECIDED, f"{tried}; but only {shows}.", before, after, caveats)
    sentence = f"{tried}, neither by simple readers ({shows}) nor by the model after {_training(after)}."
    return _answer(ExperimentVerdict.UNREADABLE, sentence, before, after, caveats)


def describe_loss(
    before: Reading, after: Reading, lost_first: Loss | None, lost_later: Loss, caveats: list[str]
) -> Experiment:
    """Where it is lost, and since when."""
    since_start = lost_first is not None and lost_first.at.name == lost_later.at.name
    found = lost_first if lost_first is not None and since_start else lost_later
    same = next((spot for spot in before.judged if spot.name == found.at.name), None)
    was_there = not since_start and same is not None and (same.score or 0.0) > same.chance
    when = f"before training as after {_training(after)}" if since_start else f"after {_training(after)}"
    source = found.before
    where = found.at.text
    if found.at.is_input:
        end = "the loss" if found.at.name == PREDICTION else f"`{found.at.module}`"
        where = f"the operations between {source.text} and {end}"
    alike = ", where all examples are alike" if found.at.is_alike else ""
    kept = " Before training it was still there." if was_there else ""
    sentence = (
        f"{source.score or 0.0:.0%} of the target can be read from {source.text}, but only "
        f"{max(0.0, found.at.score or 0.0):.0%} from {found.at.text}{alike}, and no more from anything after it, "
        f"{when}. It is lost in {where}.{kept}"
    )
    measures: dict[str, Measure] = {
        "lost_at": found.at.name,
        "readable_at": source.name or INPUTS,
        "module": found.at.module,
        "kind": "" if found.at.is_input else found.at.kind,
        "before": source.score,
        "after": max(0.0, found.at.score or 0.0),
        "since": "start" if since_start else "training" if was_there else "unknown",
        "is_alike": found.at.is_alike,
    }
    return _answer(ExperimentVerdict.LOST, sentence, before, after, caveats, measures, found.at.place)


def _skills(reading: Reading) -> tuple[float, float] | None:
    """How far reader and model go from a guess to perfection."""
    if reading.reader_right is None or reading.own_right is None or reading.guess_right is None:
        return None
    room = 1 - reading.guess_right
    if room <= 0:
        return None
    return (reading.reader_right - reading.guess_right) / room, (reading.own_right - reading.guess_right) / room


def _improves(before: Reading, after: Reading) -> bool:
    """Has training brought the model nearer to what a reader achieves?"""
    if before.own_right is None or after.own_right is None or after.reader_right is None:
        return False
    return after.own_right - before.own_right > GONE * abs(after.reader_right - before.own_right)


def _examples(reading: Reading) -> str:
    many = f"{reading.examples:,} held-out examples"
    return many if not reading.positions else f"{reading.items:,} positions of {many}"


def _training(after: Reading) -> str:
    return f"{after.steps} steps"


def _answer(
    verdict: ExperimentVerdict,
    sentence: str,
    before: Reading,
    after: Reading,
    caveats: Sequence[str] = (),
    measures: dict[str, Measure] | None = None,
    place: Place | None = None,
) -> Experiment:
    known: dict[str, Measure] = dict(measures or {})
    if before.inputs is not None:
        latest = after if after.inputs is not None else before
        known |= {
            "inputs": before.inputs.score,
            "chance": before.inputs.chance,
            "examples": before.examples,
            "reader_right": latest.reader_right,
            "own_right": latest.own_right,
            "guess_right": latest.guess_right,
        }
    return Experiment(
        name="layers",
        verdict=verdict,
        sentence=sentence,
        method=(
            "ridge regression, linear and with a Gaussian kernel, on part of the examples that the script's own loop "
            "met and judged on the others, weights held meanwhile; chance from targets exchanged between examples"
        ),
        measures=known,
        table=_table(before, after),
        caveats=tuple(caveats),
        place=place,
    )


def _table(before: Reading, after: Reading) -> Table | None:
    spots = {spot.name: spot for spot in before.sites}
    later = {spot.name: spot for spot in after.sites}
    if not spots:
        return None
    rows: list[tuple[Measure, ...]] = []
    for name, spot in spots.items():
        own = later.get(name)
        gradient = None if not name or own is None or not own.wants_gradient else ("yes" if own.gradient else "none")
        if own is not None and own.gradient and own.gradient_varies is False:
            gradient = "constant"
        shown = tuple(None if one is None or one.score is None else max(0.0, one.score) for one in (spot, own))
        rows.append((spot.row, *shown, gradient))
    with_training = any(row[2] is not None for row in rows)
    columns = ("readable from", "untrained", f"{after.steps} steps" if with_training else "trained", "gradient")
    return Table(columns, tuple(rows), 2 if with_training else 1)
