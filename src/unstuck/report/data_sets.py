"""What data sets hold, as lines of a report and as previews for the page."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from unstuck.findings.data_sets import Comparison, DataFound, DataSet, Twins
from unstuck.findings.preview import Preview, Targets
from unstuck.report import text
from unstuck.report.terminal import Line

SHOWN = 8
"""Classes that are listed."""


def lines(found: DataFound, prose: int) -> list[Line]:
    """A part for each data set."""
    shown: list[Line] = []
    for one in found.sets:
        facts = list(facts_of(one, found))
        wide = max((len(name) for name, _ in facts), default=0)
        shown += [[], [(f"{one.name} ({one.role}, {one.kind})", "strong")]]
        for name, fact in facts:
            shown += text.hanging([(f"  {name:<{wide}}  ", "label")], fact, prose)
    return shown


def facts_of(one: DataSet, found: DataFound) -> Iterator[tuple[str, str]]:
    """What a table of tensors does not say, in words."""
    whole = one.size is not None and one.read == one.size
    yield "examples", f"{one.read:,}" if whole or one.size is None else f"{one.read:,} of {one.size:,} read"
    if one.varies:
        yield "augmented", "the same example comes out different each time"
    if one.classes:
        yield "classes", classes_words(one.classes)
    for part in one.parts:
        if part.lengths is not None:
            low, middle, high = part.lengths
            yield f"length of {part.name}", f"{low} to {high}, median {middle}; padding is {part.padding:.0%} of it"
        if part.kinds is not None and not part.is_target:
            yield f"ids in {part.name}", f"{part.kinds:,} different ones"
        if part.broken:
            yield f"missing in {part.name}", f"{part.broken:.2%} is NaN or infinite"
    if one.equal:
        yield "copies", f"{one.equal:,} examples equal an earlier one of the same data set"
    for comparison in found.comparisons:
        if comparison.name == one.name:
            yield f"also in {comparison.trained}", overlap_words(comparison)


def classes_words(classes: dict[int, int]) -> str:
    """`2: 0 (90 %), 1 (10 %)`."""
    total = sum(classes.values())
    often = sorted(classes.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{label} ({count / total:.1%})" for label, count in often[:SHOWN])
    more = f", ... the rarest {often[-1][0]} ({often[-1][1]:,} examples)" if len(often) > SHOWN else ""
    return f"{len(classes)}: {shown}{more}"


def overlap_words(one: Comparison) -> str:
    """How many examples it has in common with the training."""
    if one.shared is not None and one.shared.count:
        return f"{_count(one.shared)} are the same examples of the same data set"
    ways = ((one.equal, "are equal"), (one.near, "have an almost equal one"), (one.overlapping, "overlap by half"))
    found = [f"{_count(twins)} {words}{_chance(twins)}" for twins, words in ways if twins is not None and twins.count]
    return "; ".join(found) or "none"


def _count(twins: Twins) -> str:
    return f"{twins.count:,} of {twins.looked_at:,}"


def _chance(twins: Twins) -> str:
    return " (few different examples are possible, so this is chance)" if twins.natural else ""


def previews_of(found: DataFound) -> tuple[Preview, ...]:
    """The first examples of each data set, and one example under several draws of the augmentation."""
    previews = []
    for one in found.sets:
        tensors = list(one.shown)
        if one.draws is not None:
            name = f"{one.draws.name}: one example, read {one.draws.examples} times"
            tensors.append(msgspec.structs.replace(one.draws, name=name, duplicates=0))
        target = one.target
        counts = {str(label): count for label, count in (one.classes or {}).items()}
        previews.append(
            Preview(
                model=f"{one.name} ({one.role})",
                tensors=tuple(tensors),
                targets=Targets(
                    loss=target.name,
                    dtype=target.dtype,
                    shape=(one.read, *target.shape),
                    low=target.low,
                    high=target.high,
                    counts=counts,
                    batches=1,
                )
                if target is not None
                else None,
            )
        )
    return tuple(previews)
