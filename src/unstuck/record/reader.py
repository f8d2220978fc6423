"""Reads a record back: tolerant of a torn last line, strict about everything before it, bounded in size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from unstuck.events import (
    RECORD_VERSION,
    AnyEvent,
    Backward,
    Crash,
    Event,
    Gauges,
    LossCall,
    LossesBetween,
    ModelSeen,
    Note,
    OptimizerSeen,
    RunEnded,
    RunStarted,
    Setup,
)
from unstuck.record.store import RecordError, record_file

LONGEST_END = 2**16
"""Bytes of a last line."""
LARGEST_RECORD = 256 * 2**20
"""The writer stops at a quarter of this, so a larger file is not one of ours."""

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in AnyEvent.__args__)
_Kind = TypeVar("_Kind", bound=Event)


class _Tagged(msgspec.Struct):
    event: str


_tag_decoder = msgspec.json.Decoder(_Tagged)


class Record(NamedTuple):
    """The events of one process, in the order they happened."""

    path: Path
    events: tuple[Event, ...]
    incomplete: bool = False
    """The process was killed: there is no closing line, or the last line is torn."""

    def of(self, *kinds: type[_Kind]) -> Iterator[_Kind]:
        """The events of these kinds."""
        return (event for event in self.events if isinstance(event, kinds))

    @property
    def started(self) -> RunStarted:
        """The first line."""
        return next(self.of(RunStarted))

    @property
    def ended(self) -> RunEnded | None:
        """How it ended; None if it was killed."""
        return next(self.of(RunEnded), None)

    @property
    def crash(self) -> Crash | None:
        """The exception that ended it, if one did."""
        return next(self.of(Crash), None)

    @property
    def notes(self) -> list[Note]:
        """What could not be watched, and why."""
        return list(self.of(Note))

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The loss by step; by backward in a run that never steps. Non-finite values are absent."""
        gauges = list(self.of(Gauges))
        if all(gauge.step == 0 for gauge in gauges):
            return [(index, gauge.loss) for index, gauge in enumerate(gauges) if gauge.loss is not None]
        between = [pair for told in self.of(LossesBetween) for pair in zip(told.steps, told.values, strict=True)]
        known = [*((gauge.step, gauge.loss) for gauge in gauges), *between]
        return sorted(((step, loss) for step, loss in known if loss is not None), key=lambda pair: pair[0])

    def setup(self) -> Setup:
        """The live objects as this run last showed them, each loss and backward once per call site."""
        models = {event.model: event for event in self.of(ModelSeen)}
        optimizers: dict[str, OptimizerSeen] = {}
        for event in self.of(OptimizerSeen):
            built = optimizers.get(event.optimizer, event).place
            optimizers[event.optimizer] = msgspec.structs.replace(event, place=built)
        losses: dict[object, LossCall] = {}
        for call in self.of(LossCall):
            losses.setdefault((call.loss, call.place and call.place.key), call)
        backwards: dict[object, Backward] = {}
        for backward in self.of(Backward):
            backwards.setdefault(backward.place and backward.place.key, backward)
        return Setup(
            models=tuple(models.values()),
            optimizers=tuple(optimizers.values()),
            losses=tuple(losses.values()),
            backwards=tuple(backwards.values()),
        )


def read(path: str | os.PathLike[str]) -> Record:
    """Read a record from its file or its run directory, or raise `RecordError`."""
    file = record_file(path) if Path(path).is_dir() or not Path(path).is_file() else Path(path)
    content = _content(file)
    lines = content.split(b"\n")
    torn = lines.pop()  # empty when the last line was completed
    events = _events(file, lines)
    if not events:
        raise RecordError(f"{file} holds no complete event; the run was killed at its start, so run it again.")
    _check_start(file, events[0])
    incomplete = bool(torn) or not any(isinstance(event, RunEnded) for event in events)
    return Record(file, tuple(events), incomplete)


def has_ended(path: str | os.PathLike[str]) -> bool:
    """Is the last line of a record its end? Only that line is read."""
    with record_file(path).open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LONGEST_END))
        last = file.read().removesuffix(b"\n").rpartition(b"\n")[2]
    try:
        return _tag_decoder.decode(last).event == RunEnded.__struct_config__.tag
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _content(file: Path) -> bytes:
    try:
        if file.stat().st_size > LARGEST_RECORD:
            raise RecordError(f"{file} is larger than any record unstuck writes; check that it is the file you mean.")
        return file.read_bytes()
    except FileNotFoundError:
        raise RecordError(f"There is no record at {file}; make one with `unstuck run`.") from None
    except OSError as error:
        raise RecordError(f"{file} cannot be read ({error.strerror}); check the path and its permissions.") from None


def _events(file: Path, lines: list[bytes]) -> list[Event]:
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        try:
            events.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if _from_the_future(line) and number > 1:
                continue
            if number == 1:
                raise RecordError(
                    f"{file} is not a record of unstuck; give the run directory or its events.jsonl."
                ) from None
            raise RecordError(
                f"{file} is damaged at line {number} ({error}); its events cannot be trusted, so run again."
            ) from None
    return events


def _from_the_future(line: bytes) -> bool:
    try:
        return _tag_decoder.decode(line).event not in _KNOWN
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def _check_start(file: Path, first: Event) -> None:
    if not isinstance(first, RunStarted):
        raise RecordError(f"{file} does not begin as a record does; give the run directory or its events.jsonl.")
    if first.version > RECORD_VERSION:
        raise RecordError(
            f"{file} was written by a newer unstuck (record version {first.version}, this one reads up to "
            f"{RECORD_VERSION}); upgrade unstuck to read it."
        )
