"""R09 in whole data sets: values that are missing or far off, columns that hold one value, labels that are new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.data_sets import Role
from unstuck.rules.recipe.data_red_flags import Flag, rule
from unstuck.rules.recipe.data_red_flags.setup import BROKEN, CLEAN

if TYPE_CHECKING:
    from unstuck.findings.data_sets import Comparison, DataSet, Part
    from unstuck.findings.results import Experiment

ONLY_ONE = "With one class there is nothing to distinguish: the loss falls to 0 and the model learns one answer."
ENOUGH = 48
FEWEST_UNSEEN = 0.002
"""Of the examples of an evaluation."""
PICTURE = 16
"""Columns from which on several that are always the same may be the border of a flattened picture."""


def find(experiment: Experiment) -> Iterator[Finding]:
    """What `data` has read."""
    data = experiment.data
    for one in data.sets if data is not None else ():
        for part in one.parts:
            yield from _missing(one, part)
            yield from _constant(one, part)
        yield from _far_off(one)
        yield from _one_class(one)
    for comparison in data.comparisons if data is not None else ():
        own = data.named(comparison.name) if data is not None else None
        if own is not None and comparison.unseen:
            yield from _unseen(own, comparison)


def _missing(one: DataSet, part: Part) -> Iterator[Finding]:
    if not part.broken:
        return
    columns = ", ".join(f"{column} ({share:.1%})" for column, share in part.broken_columns.items())
    where = f": column {columns}" if columns else ""
    yield rule.finding(
        f"{part.broken:.2%} of {part.name} in {one.name} is NaN or infinite{where}.",
        cause=BROKEN,
        fix=CLEAN,
        subject=Subject("call", f"{part.name} of {one.name}"),
        place=one.place,
        evidence=[Evidence("examples read", one.read)],
        variant=Flag.BROKEN_VALUES,
    )


def _constant(one: DataSet, part: Part) -> Iterator[Finding]:
    """A column of ones is a bias, and zeros are rare categories or the border of an image."""
    values = set(part.constant.values())
    telling = [value for value in part.constant.values() if value]
    width = part.shape[0] if part.shape else 0
    if one.read < ENOUGH or not part.is_table or not telling or telling == [1.0]:
        return
    if width >= PICTURE and part.constants > 1 and len(values) == 1:
        return
    shown = ", ".join(f"{column} ({value:.3g})" for column, value in part.constant.items())
    yield rule.finding(
        f"{part.constants} of the {width} columns of {part.name} have the same value in all {one.read:,} examples of "
        f"{one.name}: {shown}.",
        cause="A column that never changes says nothing about an example, so what it was meant to hold is missing.",
        fix="Check how these columns are computed: integer division (//), a wrong index, a column that was filled or "
        "scaled to one value. Drop them if they are meant.",
        subject=Subject("call", f"columns of {part.name} in {one.name}"),
        place=one.place,
        evidence=[Evidence("constant columns", part.constants), Evidence("examples read", one.read)],
        severity=Severity.WARNING,
        confidence=Confidence.LIKELY,
        variant=Flag.CONSTANT_COLUMNS,
    )


def _far_off(one: DataSet) -> Iterator[Finding]:
    for code in one.codes:
        yield rule.finding(
            f"Column {code.column} of {one.name} is {code.value:.6g} in {code.count:,} examples, and between "
            f"{code.low:.4g} and {code.high:.4g} in all others.",
            cause="A value that comes again and again, far from all others, is a code: for missing, unknown or cut "
            "off. The model takes it for a measurement, and scaling by mean and deviation squeezes all others "
            "together.",
            fix="Replace it by the mean of the others, with a column that says that it was missing, before scaling.",
            subject=Subject("call", f"column {code.column} of {one.name}"),
            place=one.place,
            evidence=[Evidence("examples with it", code.count), Evidence("the first of them", code.example)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Flag.OUTLIER,
        )
    for far in one.outliers:
        yield rule.finding(
            f"Example {far.example} of {one.name} has {far.value:.4g} in column {far.column}, while 98 % of the column "
            f"are between {far.low:.4g} and {far.high:.4g}.",
            cause="One such value dominates the gradient of the first layer, and the scale of its column.",
            fix="Find out what it means (a missing value, another unit), then correct, clip or remove it.",
            subject=Subject("call", f"column {far.column} of {one.name}"),
            place=one.place,
            evidence=[Evidence("value", far.value), Evidence("example", far.example)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Flag.OUTLIER,
        )


def _one_class(one: DataSet) -> Iterator[Finding]:
    if one.classes is not None and len(one.classes) == 1 and one.read >= ENOUGH and one.role is Role.TRAINING:
        label = next(iter(one.classes))
        yield rule.finding(
            f"All {one.read:,} labels of {one.name} are {label}.",
            cause=ONLY_ONE,
            fix="Check how the labels are read and encoded, and whether a filter removed the other classes.",
            subject=Subject("loss", f"labels of {one.name}"),
            place=one.place,
            evidence=[Evidence("labels read", one.read), Evidence("class", label)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Flag.ONE_CLASS,
        )


def _unseen(own: DataSet, one: Comparison) -> Iterator[Finding]:
    """Not where all classes are others, as in few-shot learning."""
    count = sum(one.unseen.values())
    if own.classes is None or len(one.unseen) == len(own.classes) or count < FEWEST_UNSEEN * own.read:
        return
    labels = list(one.unseen)
    shown = ", ".join(str(label) for label in labels[:6]) + (", ..." if len(labels) > 6 else "")
    yield rule.finding(
        f"{count:,} of the {own.read:,} labels of {one.name} are of classes that {one.trained} does not have: {shown}.",
        cause="A model cannot answer with a class that it has never been shown.",
        fix="Number the classes once, from the training data, and check what became of their training examples.",
        subject=Subject("loss", f"labels of {one.name}"),
        place=own.place,
        evidence=[Evidence("classes", len(labels)), Evidence("labels", count)],
        severity=Severity.WARNING,
        variant=Flag.UNSEEN_CLASS,
    )
