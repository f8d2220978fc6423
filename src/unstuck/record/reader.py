"""Reads a record back: bounded in size, and tolerant of lines that are damaged, which are skipped and counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from unstuck.events import (
    RECORD_VERSION,
    Activations,
    Event,
    LayersRan,
    LossesBetween,
    RunEnded,
    RunStarted,
    TensorsNamed,
)
from unstuck.record.lines import KINDS, NOT_FINITE, Damaged, decode, tag_of
from unstuck.record.record import Record
from unstuck.record.store import LARGEST_RECORD, RecordError, record_file
from unstuck.regular import NotRegular, open_regular

LONGEST_END = 2**16
"""Bytes of a last line."""
MOST_EVENTS = 1_000_000
"""A record of the largest size has a few hundred thousand; more and smaller ones would take too much memory."""
MOST_DAMAGED = 10_000
"""Lines that are skipped, at most: more are not damage but another kind of file."""

COLUMNS: dict[type[Event], tuple[str, ...]] = {
    LossesBetween: ("steps", "values"),
    TensorsNamed: ("names", "kinds", "sizes", "dimensions", "groups", "depths"),
    LayersRan: ("names", "kinds", "rms"),
    Activations: ("names", "kinds", "zero", "dead", "saturated"),
}
"""Events in columns, which rules read side by side."""


def read(path: str | os.PathLike[str]) -> Record:
    """Read a record from its file or its run directory, or raise `RecordError`."""
    place = Path(path)
    file = record_file(place) if place.is_dir() or not place.exists() else place
    events: list[Event] = []
    damaged: list[int] = []
    torn = False
    for number, line in enumerate(_lines(file), 1):
        if not line.endswith(b"\n"):
            torn = True
            break
        try:
            event = decoded(line)
            if event is not None:
                events.append(event)
            if len(events) > MOST_EVENTS:
                raise RecordError(_too_large(file))
        except Damaged:
            damaged.append(number)
            if len(damaged) > MOST_DAMAGED:
                raise RecordError(
                    f"{file} has more than {MOST_DAMAGED:,} lines that are not events; check that it is a record."
                ) from None
    _check_start(file, events, damaged)
    incomplete = torn or not any(isinstance(event, RunEnded) for event in events)
    return Record(file, tuple(events), incomplete, tuple(damaged))


def has_ended(path: str | os.PathLike[str]) -> bool:
    """Is the last line of a record its end? Only that line is read."""
    with open_regular(record_file(path)) as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LONGEST_END))
        last = file.read(LONGEST_END).removesuffix(b"\n").rpartition(b"\n")[2]
    return tag_of(last) == RunEnded.__struct_config__.tag


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with open_regular(file) as stream:
            left = LARGEST_RECORD
            while line := stream.readline(left + 1):
                left -= len(line)
                if left < 0:
                    raise RecordError(_too_large(file))
                yield line
    except FileNotFoundError:
        raise RecordError(f"There is no record at {file}; make one with `unstuck run`.") from None
    except NotRegular as error:
        raise RecordError(f"{file} is {error.strerror}, not a record; give the folder of a run.") from None
    except OSError as error:
        raise RecordError(f"{file} cannot be read ({error.strerror}); check the path and its permissions.") from None


def _too_large(file: Path) -> str:
    return f"{file} is larger than any record unstuck writes; check that it is the file you mean."


def decoded(line: bytes) -> Event | None:
    """The event of a line; None for one that only a newer version knows. Raises Damaged."""
    try:
        return _event(line)
    except Damaged:
        if (tag := tag_of(line)) and tag not in KINDS:
            return None
        raise


def _event(line: bytes) -> Event:
    event = decode(line)
    columns = COLUMNS.get(type(event))
    if columns and len({len(getattr(event, column)) for column in columns}) > 1:
        raise Damaged(f"the columns {', '.join(columns)} are not of one length")
    if any(mark in line for mark in NOT_FINITE):
        from unstuck.record.finite import measured

        return measured(event)
    return event


def _check_start(file: Path, events: list[Event], damaged: list[int]) -> None:
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is not None and started.version > RECORD_VERSION:
        raise RecordError(
            f"{file} was written by a newer unstuck (record version {started.version}, this one reads up to "
            f"{RECORD_VERSION}); upgrade unstuck to read it."
        )
    if started is not None or len(events) > max(1, len(damaged)):
        return  # several events are not an accident, though the first line is lost
    if not events and not damaged:
        raise RecordError(
            f"{file} holds no complete event: the run was killed as it began, or its disk was full; run it again."
        )
    raise RecordError(f"{file} is not a record of unstuck; give the run directory or its events.jsonl.")
