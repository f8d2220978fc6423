"""Become one with the data: what the data sets of a script hold, how they differ, and what is wrong with them.

The script runs until its data sets are known: those that it trains on, and those that it evaluates on. Then it is
ended, and they are read through their own loaders, each example once, as long as there is time.
Measures: `sets` (how many were read), `examples` (in all of them).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.experiments import experiment, findings_in
from unstuck.findings.data_sets import DataFound, DataSet, Role
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, Status, Table
from unstuck.interventions import Intervention
from unstuck.interventions.probe_model import ReadData
from unstuck.interventions.stop_after import StopAfter
from unstuck.trials.runner import Outcome, Variant
from unstuck.trials.trial import StopReason

if TYPE_CHECKING:
    from unstuck.trials.context import Context

MOST_STEPS = 500
IN_DIAGNOSIS = 20.0
"""Seconds that looking and reading may take there,"""
SHARE = 0.8
"""and this share of what is left where nothing else is to be done."""
METHOD = "the script ran until its data sets were known; then each example was read once, through its own loader"


@experiment(
    "what do its data sets hold, and what is wrong with them?",
    """Read the data sets that the script builds, through its own loaders and without training: what they
hold, and whether examples of the evaluation are also in the training, equal inputs have different
targets, labels look wrong, classes are missing, values are missing or far off, splits are prepared
differently, or the target can be read off a column.""",
    order=10,
    takes_several_runs=False,
    in_diagnosis=True,
    if_explained=False,
    if_going_well=False,
    if_memorizing=True,
    applies=lambda done: "sets" in done.measures,
    has_page=True,
)
def data(context: Context, changes: Sequence[Intervention] = ()) -> Experiment:
    """Find them, read them, compare them."""
    began = time.monotonic()
    if context.live:
        return _undecided("These are objects, and not a script.", began)
    first = not context.outcomes
    seconds = min(math.inf if first else IN_DIAGNOSIS, SHARE * context.left)
    context.tell("looking for its data sets, and reading them")
    variant = Variant("data", (*changes, ReadData(seconds), StopAfter(MOST_STEPS)))
    run = context.run([variant], MOST_STEPS, extra=seconds)[0]
    found = _noted(run)
    if found is None or not found.sets:
        return _undecided(_why_nothing(run, found), began)
    trouble = run.notes.get("data_trouble")
    done = Experiment(
        name="data",
        verdict=ExperimentVerdict.SOUND,
        sentence=in_words(found),
        method=METHOD,
        measures={"sets": len(found.sets), "examples": sum(one.read for one in found.sets)},
        table=_table(found),
        data=found if first else found.without_pictures(),
        caveats=(
            *(one.why for one in found.sets if one.why),
            *found.cut,
            *([str(trouble)] if trouble else []),
            *_without_evaluation(found),
        ),
        place=found.sets[0].place,
        seconds=time.monotonic() - began,
    )
    codes = ", ".join(dict.fromkeys(finding.id for finding in findings_in(done)))
    if not codes:
        why = _why_undecided(found)
        if not why:
            return done
        return msgspec.structs.replace(done, verdict=ExperimentVerdict.UNDECIDED, sentence=f"{done.sentence} {why}")
    sentence = f"{done.sentence} To look at: {codes}."
    return msgspec.structs.replace(done, verdict=ExperimentVerdict.FLAWED, sentence=sentence)


def _noted(run: Outcome) -> DataFound | None:
    try:
        return msgspec.convert(run.notes.get("data"), DataFound, str_keys=True)
    except msgspec.ValidationError:
        return None


def in_words(found: DataFound) -> str:
    """What was read."""
    each = [f"{one.name} ({one.role}, {_amount(one)})" for one in found.sets]
    return f"Read {', '.join(each)}."


def _amount(one: DataSet) -> str:
    whole = one.size is not None and one.read == one.size
    return f"{one.read:,} examples" if whole or one.size is None else f"{one.read:,} of {one.size:,} examples"


def _table(found: DataFound) -> Table:
    rows: list[tuple[Measure, ...]] = []
    for one in found.sets:
        for part in one.parts:
            shape = " x ".join("?" if length < 0 else str(length) for length in part.shape) or "1"
            low, high = part.low, part.high
            span = f"{low:.4g} to {high:.4g}" if low is not None and high is not None else "-"
            mean = f"{part.mean:.3g} ± {part.spread:.3g}" if part.mean is not None and part.spread is not None else "-"
            what = f"{part.name} (target)" if part.is_target else part.name
            rows.append((one.name, what, part.dtype, shape, span, mean))
    return Table(("data set", "tensor", "type", "shape", "range", "mean ± deviation"), tuple(rows))


def _without_evaluation(found: DataFound) -> tuple[str, ...]:
    if len(found.sets) > 1:
        return ()
    return ("No data for evaluation were found, so the splits could not be compared.",)


def _why_undecided(found: DataFound) -> str:
    """Nothing was found; was anything looked at?"""
    training = found.training
    if training is None or not training.read:
        return "Its training data were not read, so nothing can be said of them."
    others = [one for one in found.sets if one.role is Role.EVALUATION]
    if others and not found.comparisons:
        return f"{others[0].name} could not be compared with {training.name}."
    return ""


def _why_nothing(run: Outcome, found: DataFound | None) -> str:
    if found is not None and found.cut:
        return " ".join(found.cut)
    if run.notes.get("data_trouble"):
        return str(run.notes["data_trouble"])
    if run.status is Status.CRASHED:
        return "The script crashed before its data sets were known."
    if run.status is Status.KILLED or run.reason == StopReason.TIME_OVER:
        return "The time was over before its data sets were known; give it more with --budget."
    return (
        "No data set was found: batches come neither from a DataLoader nor from the rows of a tensor or an array that "
        "a variable holds."
    )


def _undecided(sentence: str, began: float) -> Experiment:
    return Experiment(
        name="data",
        verdict=ExperimentVerdict.UNDECIDED,
        sentence=sentence,
        method=METHOD,
        seconds=time.monotonic() - began,
    )
