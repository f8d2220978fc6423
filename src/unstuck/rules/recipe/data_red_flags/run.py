"""R09 in a run: what models received, what loaders returned, and how evaluation differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from unstuck.events import BatchSeen, Evaluated, InputFact, LossCall, NonFinite, TensorFact
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.recipe import init_loss
from unstuck.rules.recipe.data_red_flags import Flag, rule
from unstuck.rules.recipe.data_red_flags.labels import imbalance, one_label, unseen_class
from unstuck.rules.recipe.data_red_flags.setup import BROKEN, CLEAN, LARGE, badly_scaled, identical
from unstuck.rules.shared import dynamics
from unstuck.rules.shared.data import trained_on, training_losses
from unstuck.rules.shared.dynamics import median

FAR = 100.0
"""An outlier is this many times the value that 95 % stay below."""
ABSURD = 1000.0
"""An outlier this extreme is reported even if the loss falls."""
MANY_ALIKE = 0.25
FEWEST_EXAMPLES = 8
FEWEST_NUMBERS = 8
"""Examples with fewer numbers may be equal by chance."""
ENOUGH_EXAMPLES = 48
"""Examples over which a column must hold one value: of a column that differs in one example of ten, 48 equal ones are
a chance of less than 1 %."""
MISMATCH = 1.8
"""Images of 0 to 1 next to ones normalised to -1 to 1 differ in scale by 2, and by 3 to 4 with the usual statistics."""
TIMES_OWN = 4.0
"""And so many times as much as the training batches differ among each other."""
FEWEST_STEPS = 30
"""Fewer steps are too few to judge a loss."""
ENORMOUS = 1000.0
LONG = 100
LAST_CALLS = 9
ABOVE = 5.0
"""As a multiple of the loss of guessing: a loss above it after that many steps has learned nothing."""


def find(record: Record) -> Iterator[Finding]:
    """What models received, what loaders returned, and the labels of the losses."""
    yield from _non_finite(record)
    by_model: dict[str, list[BatchSeen]] = {}
    for batch in record.of(BatchSeen):
        if batch.model:
            by_model.setdefault(batch.model, []).append(batch)
    for batches in by_model.values():
        if len(batches) >= 3 and all(batch.constant == 1.0 and batch.examples >= 4 for batch in batches):
            yield identical(batches)
            continue
        consequence = _consequence(record)
        yield from _outliers(batches, consequence)
        # If the loss falls, only enormous inputs are worth reporting.
        enormous = any((fact.high or 0.0) > ENORMOUS for fact in batches[-1].inputs)
        if consequence or (enormous and (consequence := _above_a_guess(record))):
            yield from badly_scaled(batches[-1], consequence)
        yield from _constant_columns(batches, consequence)
    yield from _duplicates(record)
    yield from _mismatch(record, by_model)
    yield from one_label(record)
    yield from unseen_class(record)
    yield from imbalance(record)


def _consequence(record: Record) -> str:
    """What went wrong with the loss; empty if nothing did or several optimizers share no single loss."""
    if dynamics.alternating(record):
        return ""
    if found := dynamics.failure(record):
        return f"the loss {found.word}"
    trend = dynamics.trend(record)
    if trend.steps < FEWEST_STEPS or not dynamics.is_unhealthy(record):
        return ""
    unhealthy = trend.word in dynamics.UNHEALTHY
    return f"the loss is {trend.word}" if unhealthy else f"the loss {dynamics.worse_than_a_guess(record)}"


def _above_a_guess(record: Record) -> str:
    """A loss that never came near that of guessing, even if it kept falling."""
    for first in init_loss.judged(record) if not dynamics.alternating(record) else ():
        guess = init_loss.guess_of(first)[0]
        values = _course(record, first)
        last = median([value for _, value in values[-LAST_CALLS:]])
        began = f"the loss starts at {first.value:.3g}, where guessing costs {guess:.3g}"
        if last is not None and last > ABOVE * guess and values[-1][0] >= LONG:
            return f"{began}, and is still {last:.3g} after {values[-1][0]} steps"
    return ""


def _course(record: Record, first: LossCall) -> Sequence[tuple[int, float]]:
    """The values of a loss over the steps: every one, if the run has no other loss."""
    every = record.losses
    if every and first.value is not None and math.isclose(every[0][1], first.value, rel_tol=1e-3):
        return every
    calls = [call for call in training_losses(record, first.loss) if call.place == first.place]
    return [(call.step, call.value) for call in calls if call.value is not None]


def _non_finite(record: Record) -> Iterator[Finding]:
    event = next((event for event in record.of(NonFinite) if event.what == "input"), None)
    if event is not None:
        word = "NaN" if event.value == "nan" else "an infinite value"
        yield rule.finding(
            f"The batch of step {event.step + 1} already contained {word} when {event.name or 'the model'} "
            "received it.",
            cause=BROKEN,
            fix=CLEAN,
            subject=Subject.at("call", "inputs", event.place),
            place=event.place,
            evidence=[Evidence("step", event.step + 1)],
            variant=Flag.BROKEN_VALUES,
        )


def _outliers(batches: Iterable[BatchSeen], consequence: str) -> Iterator[Finding]:
    for batch in batches:
        fact = batch.layer_input
        if fact is None or fact.low is None or fact.high is None or len(fact.quantiles) != 5:
            continue
        usual = max(abs(fact.quantiles[0]), abs(fact.quantiles[-1]))
        extreme = fact.high if fact.high > -fact.low else fact.low
        limit = (FAR if consequence else ABSURD) * usual
        if usual > 0 and abs(extreme) >= max(limit, LARGE):
            yield rule.finding(
                f"One input is {extreme:.4g}, while 90 % of the inputs are between {fact.quantiles[0]:.3g} and "
                f"{fact.quantiles[-1]:.3g}" + (f", and {consequence}." if consequence else "."),
                cause="One such value dominates the gradient of the first layer.",
                fix="Find out what it means (a missing value, another unit), then correct, clip or remove it.",
                subject=Subject.at("call", "outlier", batch.place),
                place=batch.place,
                evidence=[Evidence("step", batch.step + 1), Evidence("farthest", extreme, threshold=limit)],
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                variant=Flag.OUTLIER,
            )
            return


PICTURE = 16


def _constant_columns(batches: Sequence[BatchSeen], consequence: str) -> Iterator[Finding]:
    """Columns of a table that hold one value in all batches. A column of ones is a bias, and zeros are rare categories
    or the border of an image, so there must be more."""
    for position, fact in enumerate(batches[0].inputs):
        facts = [batch.inputs[position] for batch in batches if len(batch.inputs) > position]
        same = {
            column: value for column, value in fact.still.items() if all(f.still.get(column) == value for f in facts)
        }
        nonzero = [value for value in same.values() if value]
        examples = sum(batch.examples for batch in batches)
        if len(batches) < 3 or examples < ENOUGH_EXAMPLES or not nonzero or nonzero == [1.0]:
            continue
        shown = ", ".join(f"{column} ({value:.3g})" for column, value in list(same.items())[:6])
        more = ", ..." if len(same) > 6 else ""
        width = fact.shape[1] if fact.shape is not None and len(fact.shape) > 1 else 0
        if width >= PICTURE and len(same) > 1 and len(set(same.values())) == 1:
            continue  # the border of a flattened picture, whatever 0 was shifted to
        yield rule.finding(
            f"{len(same)} of the {width} columns of {fact.name} have the same value in every example that was looked "
            f"at: {shown}{more}" + (f", and {consequence}." if consequence else "."),
            cause="A column that never changes says nothing about an example, so what it was meant to hold is missing.",
            fix="Check how these columns are computed: integer division (//), a wrong index, a column that was filled "
            "or scaled to one value.",
            subject=Subject.at("call", f"columns of {fact.name}", batches[0].place),
            place=batches[0].place,
            evidence=[Evidence("constant columns", len(same)), Evidence("examples looked at", examples)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Flag.CONSTANT_COLUMNS,
        )


def _duplicates(record: Record) -> Iterator[Finding]:
    """Batches of a loader that uses each example once, but with many equal examples."""
    known = {loader.loader: loader for loader in trained_on(record)}
    for label, loader in known.items():
        if loader.sampler not in ("RandomSampler", "SequentialSampler"):
            continue
        batches = [batch for batch in record.of(BatchSeen) if batch.loader == label and batch.duplicates is not None]
        batches = [batch for batch in batches if batch.examples >= FEWEST_EXAMPLES and _has_numbers(batch)]
        alike = [(batch.duplicates or 0) / batch.examples for batch in batches]
        share = median(alike)
        if len(alike) >= 2 and share is not None and min(alike) >= MANY_ALIKE:
            yield rule.finding(
                f"{share:.0%} of the examples in the batches of {loader.dataset} duplicate another one in the "
                "same batch.",
                cause="The dataset has duplicates, or returns the same example for several indices, so it is "
                "effectively much smaller. Duplicates on both sides of a split make validation meaningless.",
                fix="Remove the duplicates before splitting, and check that __getitem__ uses its index.",
                subject=Subject.at("call", "examples", loader.place, word="of"),
                place=loader.place,
                evidence=[
                    Evidence("batches examined", len(alike)),
                    Evidence("equal examples", f"{min(alike):.0%} to {max(alike):.0%}", threshold=f"{MANY_ALIKE:.0%}"),
                ],
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                variant=Flag.DUPLICATES,
            )


def _has_numbers(batch: BatchSeen) -> bool:
    """Do the examples have enough measured numbers to be distinguished?"""
    floats = [fact for fact in batch.inputs if fact.shape and "float" in fact.dtype]
    return sum(math.prod(fact.shape[1:]) for fact in floats if fact.shape) >= FEWEST_NUMBERS


def _mismatch(record: Record, by_model: dict[str, list[BatchSeen]]) -> Iterator[Finding]:
    """Inputs in evaluation with another scale or mean than in training, and a worse loss."""
    last = {(event.model, event.place): event for event in record.of(Evaluated) if event.value is not None}
    for (model, place), event in last.items():
        trained = next((fact for batch in by_model.get(model, ()) for fact in batch.inputs if _is_measured(fact)), None)
        fact = event.input
        if trained is None or fact is None or fact.mean is None or not fact.spread or trained.dtype != fact.dtype:
            continue
        centre, spread = trained.mean or 0.0, trained.spread or 1.0
        if not _is_elsewhere(fact, _training_inputs(by_model[model])) or not _is_worse(record, event):
            continue
        yield rule.finding(
            f"{model} is evaluated on inputs of mean {fact.mean:.3g} and standard deviation {fact.spread:.3g}, "
            f"but trained on mean {centre:.3g} and standard deviation {spread:.3g}.",
            cause="A model only knows the range it was trained on; its predictions for other inputs are meaningless.",
            fix="Preprocess the evaluation data with the same steps and the same statistics as the training data.",
            subject=Subject.at("call", "evaluation", place),
            place=place,
            related=[batch.place for batch in by_model[model][:1]],
            evidence=[
                Evidence("range in training", f"{trained.low:.4g} to {trained.high:.4g}"),
                Evidence("range in evaluation", f"{fact.low:.4g} to {fact.high:.4g}"),
                Evidence("loss in evaluation", event.value if event.value is not None else math.nan),
            ],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Flag.EVALUATION,
        )


def _training_inputs(batches: Sequence[BatchSeen]) -> list[InputFact]:
    """The first input with numbers of each batch."""
    found = (next((fact for fact in batch.inputs if _is_measured(fact)), None) for batch in batches)
    return [fact for fact in found if fact is not None]


def _is_elsewhere(fact: TensorFact, trained: Sequence[InputFact]) -> bool:
    """Does the mean or the scale differ from training, by much and by far more than training batches do from each
    other?"""
    means, spreads = [each.mean or 0.0 for each in trained], [each.spread or 0.0 for each in trained]
    centre, spread = median(means) or 0.0, median(spreads) or 0.0
    if fact.mean is None or not fact.spread or not spread:
        return False
    ratio = max(fact.spread / spread, spread / fact.spread)
    apart = abs(fact.mean - centre) / max(fact.spread, spread)
    own_ratio = max(max(each / spread, spread / each) if each else 1.0 for each in spreads)
    own_apart = max(abs(mean - centre) for mean in means) / spread
    scale = ratio > max(MISMATCH, 1 + TIMES_OWN * (own_ratio - 1))
    place = apart > max(1.0, TIMES_OWN * own_apart)
    return scale or place


def _is_measured(fact: InputFact) -> bool:
    return "float" in fact.dtype and fact.mean is not None and bool(fact.spread)


def _is_worse(record: Record, event: Evaluated) -> bool:
    """Is the loss in evaluation clearly above that of the last training steps?"""
    values = [call.value for call in training_losses(record, event.loss) if call.value is not None]
    usual = median(values[-max(5, len(values) // 4) :])
    return usual is not None and event.value is not None and event.value > 1.5 * abs(usual)
