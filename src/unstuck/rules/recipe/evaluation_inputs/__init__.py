"""R26: a model is evaluated on inputs that were prepared in another way than those it is trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from unstuck.events import AnswersFedBack, InputsCompared
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.data_sets import Comparison
from unstuck.findings.results import Experiment
from unstuck.record import Record
from unstuck.record.outcome import Achieved
from unstuck.rule import Rule
from unstuck.rules.shared.dynamics import outcome


class Differs(Variant):
    """In what."""

    SCALE = "scale", "inputs in evaluation are a multiple of those in training"
    RANGE = "range", "inputs in evaluation have another mean or spread than in training"
    BEYOND = "beyond", "a number that comes with each example, such as a time, is far beyond those of training"
    FED_BACK = "fed-back", "answers are given back to the model in another unit than that of its inputs"
    IDS = "ids", "ids in evaluation do not stand for what they stand for in training"


rule = Rule(
    code="R26",
    name="evaluation-inputs",
    title="a model is evaluated on inputs prepared differently from those of training",
    severity=Severity.ERROR,
    explains=("M13", "O07", "P02"),
    needs=(InputsCompared, AnswersFedBack),
    variants=Differs.titles(),
)

TIMES = 2.0
"""A spread that many times larger or smaller is not chance."""
EVEN = 1.5
"""A common factor: the columns do not differ by more than this in what they were multiplied with."""
MEANS = 1.25
FEWEST_COLUMNS = 8
"""Of one column alone another scale may be another range, which is tested on purpose."""
SHIFT = 1.0
"""In standard deviations of training."""
BEYOND = 8.0
"""In standard deviations of training: farther out than any test of other ranges."""
SHARE = 0.8
"""Evaluation agrees with training less than this share of what its halves agree with each other."""
ALIKE = 0.2
SIGNIFICANT = 1.5
HALF = 0.5
MANY = 100
"""Examples of ids."""
FEWEST_IDS = 30
RELIABLE = 0.2
"""The correlation of targets with the mean of their id that must be possible before its absence means anything."""
NOTHING = 0.25
SURELY = 3.0
"""Standard errors."""
FAR = 1.5
"""In standard deviations: a forecast of the next value is not that far off on average, nor"""
WIDE = 3.0
"""as much wider or narrower as this."""
SAME_UNIT = 0.01

ALL, HARDLY = 0.9, 0.1
"""The share of columns with mean 0 and deviation 1 in a standardised table, and in one that is not."""
FEWEST_STANDARD, FEWEST_ON_LINE = 3, 16
FITS = 0.98
FEWEST_DIRECTIONS = 4.0
"""In which inputs vary, or a common factor of all columns may be a coincidence."""

RENUMBERED = (
    "A vocabulary, factorize() or label encoder that is built for each split gives the same word, user or item another "
    "number, which looks up another row of the embedding."
)
ONE_MAPPING = (
    "Build the mapping on the training set, once, and use it for every split; give unknown entries an id of their own."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """A common factor in all columns, or any difference where evaluation fails and training does not."""
    yield from _fed_back(record)
    fails = _fails(record)
    renumbered = next(filter(_are_other_things, record.of(InputsCompared)), None)
    if renumbered is not None:
        yield _of_targets(renumbered)
        return
    for event in record.of(InputsCompared):
        if event.alike is not None and event.across is not None:
            if fails and event.evaluated >= MANY and _is_another_mapping(event.alike, event.across, event.columns):
                yield _of_ids(event)
                return
        elif event.scales:
            if math.prod(event.shape) == 1:
                if (event.shift or 0.0) > BEYOND:
                    yield _of_number(event)
                    return
                continue
            factor = _common_factor(event)
            if factor is not None:
                yield _of_scale(event, factor, fails)
                return
            if fails and (not 1 / TIMES < event.scales[1] < TIMES or (event.shift or 0.0) > SHIFT):
                yield _of_range(event)
                return


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """Whole data sets, read by `data`: one split is normalised and the other is not."""
    for one in experiment.data.comparisons if experiment.data is not None else ():
        event = one.inputs
        if event is None or not event.scales or event.columns < 2:
            continue
        if _is_standardised_once(one):
            how = "raw" if one.standard[0] > one.standard[1] else "standardised"
            yield _of_splits(experiment, one, f"is {how}, and that of {one.trained} is not")
            continue
        if one.independent < FEWEST_DIRECTIONS:
            continue  # such as windows of one series, which moves by itself
        factor = _common_factor(event)
        if factor is not None:
            yield _of_splits(experiment, one, f"is {factor:.3g} times as large")
        elif _is_scaled_alike(one):
            yield _of_splits(experiment, one, f"is {event.scales[1]:.3g} times as wide")
        elif _is_on_a_line(one):
            slope, offset, *_ = one.line or (1.0, 0.0)
            yield _of_splits(experiment, one, f"is multiplied by {slope:.3g} and moved by {offset:.2g} deviations")


def _is_standardised_once(one: Comparison) -> bool:
    """Have all columns mean 0 and deviation 1 in one split, and hardly any in the other?"""
    event = one.inputs
    if event is None or event.columns < FEWEST_STANDARD:
        return False
    away = not 1 / TIMES < event.scales[1] < TIMES or (event.shift or 0.0) > SHIFT
    return max(one.standard) >= ALL and min(one.standard) <= HARDLY and away


def _is_on_a_line(one: Comparison) -> bool:
    """Do the means of all columns lie on a straight line of those of training, another than the diagonal, and are all
    deviations multiplied alike?"""
    event = one.inputs
    if one.line is None or event is None or event.columns < FEWEST_ON_LINE:
        return False
    slope, offset, fits, uneven = one.line
    apart = not 1 / TIMES < slope < TIMES or (abs(offset) > SHIFT and (event.shift or 0.0) > SHIFT / 2)
    return fits >= FITS and uneven <= EVEN and slope > 0 and apart


def _is_scaled_alike(one: Comparison) -> bool:
    """Has every column the same multiple of its deviation?"""
    event = one.inputs
    if event is None or event.columns < FEWEST_COLUMNS:
        return False
    low, middle, high = event.scales
    return not 1 / TIMES < middle < TIMES and low > 0 and high <= MEANS * low


def _of_splits(experiment: Experiment, one: Comparison, what: str) -> Finding:
    event = one.inputs
    assert event is not None
    data = experiment.data
    own = data.named(one.name) if data is not None else None
    return rule.finding(
        f"`{event.input}` of {one.name} {what}: its {event.columns} columns have {event.scales[1]:.3g} times the "
        f"spread of those of {one.trained}, and means {event.shift or 0.0:.2g} deviations away.",
        cause="The splits are prepared differently: one of them is scaled or normalised, and the other is not, or by "
        "other statistics. The model has never seen such numbers, and its answers to them mean nothing.",
        fix="Compute mean and deviation on the training data, once, and apply the same function to every split.",
        subject=Subject("model", one.name),
        place=own.place if own is not None else None,
        evidence=_evidence(event),
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Differs.RANGE,
    )


def _fed_back(record: Record) -> Iterator[Finding]:
    """Forecasts that go on from their own answers, in another unit."""
    for event in record.of(AnswersFedBack):
        if event.answers < MANY or (event.shift <= FAR and 1 / WIDE < event.spread < WIDE):
            continue
        is_as_answered = abs(event.factor - 1) < SAME_UNIT and abs(event.offset) < SAME_UNIT
        how = "as they are" if is_as_answered else f"multiplied by {event.factor:.3g}, plus {event.offset:.3g}"
        yield rule.finding(
            f"{event.model} is given its own answers, {how}, as the last position of its next input. There they have "
            f"{event.spread:.3g} times the spread of the real values before them, and a mean {event.shift:.2g} "
            "standard deviations away from theirs.",
            cause="What the model answers and what it takes are different quantities: normalised and real units, or a "
            "difference and a value. From the second step of the forecast on it is asked about numbers it has never "
            "seen.",
            fix="Convert an answer back to what the model was trained on before it becomes an input, and to real units "
            "only for the result.",
            subject=Subject("model", event.model),
            place=event.place,
            evidence=[
                Evidence("spread, times that of real inputs", round(event.spread, 4)),
                Evidence("distance of the means", round(event.shift, 3), "standard deviations", FAR),
                Evidence("factor", round(event.factor, 6)),
                Evidence("offset", round(event.offset, 6)),
                Evidence("forecasts that went on from an answer", event.rollouts),
            ],
            severity=Severity.WARNING if is_as_answered else Severity.ERROR,
            confidence=Confidence.LIKELY if is_as_answered else Confidence.CERTAIN,
            variant=Differs.FED_BACK,
        )


def _fails(record: Record) -> bool:
    """Is training good and evaluation not, or by far not as good?"""
    found = outcome(record)
    if found is None:
        return False
    if found.word is Achieved.MEMORIZES:
        return True
    guess, right, evaluated = found.right_guess, found.right, found.evaluated_right
    if guess is None or right is None or evaluated is None or guess >= 1:
        return False
    return right - guess > HALF * (1 - guess) and evaluated - guess < HALF * (right - guess)


def _common_factor(event: InputsCompared) -> float | None:
    """What all columns were multiplied with; None if that is nothing, or not the same for all."""
    low, middle, high = event.scales
    if event.columns < FEWEST_COLUMNS or 1 / TIMES < middle < TIMES or low <= 0 or event.means is None:
        return None
    even = high <= EVEN * middle and middle <= EVEN * low
    return middle if even and 1 / MEANS < event.means / middle < MEANS else None


def _is_another_mapping(alike: float, across: float, columns: int) -> bool:
    """Do the frequencies agree less with training than among themselves?"""
    if alike < ALIKE or across > SHARE * alike or columns < 10:
        return False
    apart = math.atanh(min(alike, 0.999)) - math.atanh(max(-0.999, min(across, 0.999)))
    return apart > SIGNIFICANT * math.sqrt(2 / (columns - 3))


def _are_other_things(event: InputsCompared) -> bool:
    """Do ids have targets of their own, in training and in evaluation, that have nothing to do with each other?"""
    across, possible, answers = event.same_target, event.same_target_within, event.answers_fit
    if across is None or possible is None or answers is None or event.with_target < FEWEST_IDS or possible < RELIABLE:
        return False
    if possible - across < SURELY / math.sqrt(event.with_target - 3):
        return False
    # Where the answers fit the targets there, the model knows these ids, and it is asked something else about them.
    return abs(across) < NOTHING * possible and abs(answers) < HALF * possible


def _of_targets(event: InputsCompared) -> Finding:
    return rule.finding(
        f"In evaluation the ids in `{event.input}` stand for other things: targets correlate with the mean of the same "
        f"id in training by {event.same_target or 0.0:.2f}, and within training by "
        f"{event.same_target_within or 0.0:.2f} ({event.with_target} ids).",
        cause=f"{RENUMBERED} What was learned about it is lost.",
        fix=ONE_MAPPING,
        subject=Subject("model", event.model),
        place=event.place,
        evidence=[
            Evidence("correlation with the means of training", round(event.same_target or 0.0, 3)),
            Evidence("of one half of training with the other", round(event.same_target_within or 0.0, 3)),
            Evidence("ids", event.with_target),
        ],
        variant=Differs.IDS,
    )


def _of_scale(event: InputsCompared, factor: float, fails: bool) -> Finding:
    times = f"{factor:.3g} times" if factor >= 1 else f"1/{1 / factor:.3g} of"
    return rule.finding(
        f"In evaluation `{event.input}` of {event.model} is {times} what it is in training, in all of its "
        f"{event.columns} columns.",
        cause="The inputs are scaled or normalised once more, or once less, on their way to the evaluation. The model "
        "has never seen such numbers, and its answers to them mean nothing.",
        fix="Prepare inputs in one function that training and evaluation share, and scale them there only.",
        subject=Subject("model", event.model),
        place=event.place,
        evidence=_evidence(event),
        severity=Severity.ERROR if fails else Severity.WARNING,
        confidence=Confidence.CERTAIN if fails else Confidence.LIKELY,
        variant=Differs.SCALE,
    )


def _of_number(event: InputsCompared) -> Finding:
    return rule.finding(
        f"Without gradients, {event.model} is given `{event.input}` {event.shift or 0.0:.3g} standard deviations away "
        f"from what it is in training, with {event.scales[1]:.3g} times the spread.",
        cause="One number that comes with each example, such as the time of a diffusion, has another unit there: a "
        "step number instead of a share of all steps, or the other way round. The model has never seen such numbers.",
        fix="Compute it by the same expression in training and in sampling (t / T in both, or t in both).",
        subject=Subject("model", event.model),
        place=event.place,
        evidence=_evidence(event),
        severity=Severity.WARNING,
        variant=Differs.BEYOND,
    )


def _of_range(event: InputsCompared) -> Finding:
    return rule.finding(
        f"In evaluation `{event.input}` of {event.model} has {event.scales[1]:.3g} times its spread in training, "
        f"and its means are {event.shift or 0.0:.2g} standard deviations away.",
        cause="Training succeeds and evaluation does not, and the model is given other numbers there: they are "
        "normalised by other statistics, left as they are, or come from another source.",
        fix="Use the mean and deviation of the training set, and the same transform, for every split.",
        subject=Subject("model", event.model),
        place=event.place,
        evidence=_evidence(event),
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Differs.RANGE,
    )


def _of_ids(event: InputsCompared) -> Finding:
    what = "pairs of neighbouring ids" if math.prod(event.shape) > 1 else "ids"
    return rule.finding(
        f"Evaluation uses other ids for the same things: the {what} in `{event.input}` agree with those of training by "
        f"{event.across or 0.0:.2f}, two halves of the evaluation with each other by {event.alike or 0.0:.2f}.",
        cause=f"{RENUMBERED} Training succeeds, and evaluation is at chance.",
        fix=ONE_MAPPING,
        subject=Subject("model", event.model),
        place=event.place,
        evidence=[
            Evidence(
                "correlation with training", event.across or 0.0, threshold=round(SHARE * (event.alike or 0.0), 3)
            ),
            Evidence("correlation of two halves", event.alike or 0.0),
            Evidence("examples in evaluation", event.evaluated),
        ],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Differs.IDS,
    )


def _evidence(event: InputsCompared) -> list[Evidence]:
    return [
        Evidence("spread, times that of training", event.scales[1]),
        Evidence("first and last decile of the columns", f"{event.scales[0]:.3g} to {event.scales[2]:.3g}"),
        Evidence("distance of the means", event.shift or 0.0, "standard deviations"),
        Evidence("examples", f"{event.trained} in training, {event.evaluated} in evaluation"),
    ]
