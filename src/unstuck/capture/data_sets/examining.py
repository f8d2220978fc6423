"""Reads the data sets that were found, and compares those of the evaluation with that of the training."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch

from unstuck.capture.data_sets import columns, labels, twins
from unstuck.capture.data_sets.gathering import Gathered, Known
from unstuck.capture.data_sets.reading import MOST, Reading, with_rows
from unstuck.capture.data_sets.sources import Source
from unstuck.findings.data_sets import Comparison, DataFound, DataSet, Role, Twins

READING = 0.6
"""Of the time, what reading may take."""
PASSES = 3
"""Times that training data are read again, if they come out different each time."""
MOST_SETS = 4
FEWEST = 30


class Examination:
    """What is known of some data sets by now. `tell` is called whenever there is more."""

    def __init__(self, until: float, tell: Callable[[DataFound], object] = lambda found: None) -> None:
        self._until, self._tell = until, tell
        self._sets: list[DataSet] = []
        self._comparisons: list[Comparison] = []
        self._cut: list[str] = []

    def found(self, reading: str = "") -> DataFound:
        """`reading`: what is being read. The program's own code may never come back."""
        cut = [*self._cut, *([f"Reading {reading} did not come to an end."] if reading else [])]
        return DataFound(sets=tuple(self._sets), comparisons=tuple(self._comparisons), cut=tuple(cut))

    def examine(self, sources: list[Source]) -> DataFound:
        """The first of them is what is trained on."""
        sources = sources[:MOST_SETS]
        share = READING * max(0.0, self._until - time.monotonic()) / len(sources)
        read: list[tuple[Source, Gathered, Known]] = []
        for source in sources:
            self._tell(self.found(source.name))
            reading = Reading(source)
            gathered = reading.read(time.monotonic() + share)
            known = gathered.known()
            self._sets.append(self._described(reading, gathered, known))
            if known is not None:
                read.append((source, gathered, known))
        if not read or read[0][0] is not sources[0]:
            return self.found()
        if self._sets[0].varies:
            self._read_again(*read[0][:2], read[1:])
            known = read[0][1].known()
            assert known is not None
            read[0] = (*read[0][:2], known)
        for other in read[1:]:
            self._tell(self.found())
            self._comparisons.append(_compared(read[0], other))
        return self.found()

    def _read_again(self, source: Source, gathered: Gathered, others: list[tuple[Source, Gathered, Known]]) -> None:
        """Training data that are augmented equal others only without that, or by chance."""
        until = time.monotonic() + 0.5 * max(0.0, self._until - time.monotonic())
        prepared = next((one for other in others if (one := source.prepared_as(other[0])) is not None), None)
        if source.is_stream or not others:
            return
        numbers = source.numbers()[:MOST]
        for one in [prepared] if prepared is not None else [source] * PASSES:
            try:
                for at, batch in one.batches(numbers):
                    gathered.add_again(with_rows(batch, len(at)), at.tolist())
                    if time.monotonic() > until:
                        return
            except Exception as error:
                self._cut.append(f"Reading {source.name} again failed ({type(error).__name__}).")
                return

    def _described(self, reading: Reading, gathered: Gathered, known: Known | None) -> DataSet:
        source = reading.source
        found = DataSet(
            name=source.name,
            role=source.role,
            kind=source.kind,
            size=reading.size,
            read=gathered.read,
            why=reading.why,
            place=source.place,
            varies=reading.varies,
            parts=gathered.facts(),
            batch_size=source.batch_size,
            shown=tuple(reading.shown),
            draws=reading.draws,
        )
        if known is None:
            return found
        counts = torch.unique(known.labels, return_counts=True) if known.labels is not None else None
        found = msgspec.structs.replace(
            found,
            classes=dict(zip(counts[0].tolist(), counts[1].tolist(), strict=True)) if counts is not None else None,
            equal=twins.inside(known),
        )
        is_table = any(part.is_table for part in found.parts)
        codes, outliers = columns.strange(known) if is_table else ((), ())
        found = msgspec.structs.replace(found, codes=codes, outliers=outliers)
        if gathered.read < FEWEST or source.role is not Role.TRAINING:
            return found
        telling, count = labels.telling(known) if not _are_ids(found) else ((), 0)
        in_order = source.in_order and known.labels is not None
        return msgspec.structs.replace(
            found,
            conflicts=labels.conflicts(known),
            suspects=labels.suspects(known),
            order=labels.order(known.labels) if in_order and known.labels is not None else None,
            telling=telling,
            columns=count,
        )


def _are_ids(found: DataSet) -> bool:
    return not any("float" in part.dtype for part in found.parts if not part.is_target)


def _compared(trained: tuple[Source, Gathered, Known], other: tuple[Source, Gathered, Known]) -> Comparison:
    (source, gathered, known), (own, read, seen) = trained, other
    is_same = own.dataset is not None and own.dataset is source.dataset
    shared = _shared(source, known, own, seen)
    has_shared = shared is not None and shared.count > 0
    event, standard, line = columns.compared(gathered, read)
    unseen, absent = _classes(known, seen)
    return Comparison(
        name=own.name,
        trained=source.name,
        is_same=is_same and has_shared,
        shared=shared,
        equal=None if has_shared else twins.equal(seen, known),
        near=None if has_shared else twins.near(seen, known),
        overlapping=None if has_shared else twins.overlapping(seen, known),
        unseen=unseen,
        absent=absent,
        inputs=event,
        standard=standard,
        line=line,
        independent=columns.independent(known),
    )


def _shared(source: Source, known: Known, other: Source, seen: Known) -> Twins | None:
    """Do both take examples of the same numbers from one data set?"""
    if source.is_stream or other.is_stream or source.tables is not None or other.tables is not None:
        return None
    (root, numbers), (other_root, other_numbers) = source.roots(known.numbers), other.roots(seen.numbers)
    if root is not other_root:
        return None
    both = torch.isin(other_numbers, numbers).nonzero().flatten()
    where = {int(number): index for index, number in enumerate(numbers.tolist())}
    first = [(int(seen.numbers[at]), int(known.numbers[where[int(other_numbers[at])]])) for at in both[: twins.FIRST]]
    return Twins(looked_at=len(seen.numbers), count=len(both), first=tuple(first))


def _classes(known: Known, seen: Known) -> tuple[dict[int, int], dict[int, float]]:
    """Labels that only the evaluation has, and those that it has not."""
    if known.labels is None or seen.labels is None:
        return {}, {}
    kinds, counts = torch.unique(known.labels, return_counts=True)
    others, other_counts = torch.unique(seen.labels, return_counts=True)
    new = ~torch.isin(others, kinds)
    gone = ~torch.isin(kinds, others)
    expected = counts.double() / len(known.labels) * len(seen.labels)
    return (
        dict(zip(others[new].tolist(), other_counts[new].tolist(), strict=True)),
        dict(zip(kinds[gone].tolist(), expected[gone].tolist(), strict=True)),
    )
