"""The events of one process, as rules and reports ask for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from unstuck.events import (
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
from unstuck.record.gaps import gaps_in

_Kind = TypeVar("_Kind", bound=Event)


class Record(msgspec.Struct, frozen=True, dict=True):
    """The events of one process, in the order they happened."""

    path: Path
    events: tuple[Event, ...]
    incomplete: bool = False
    """The process was killed: there is no closing line, or the last line is torn."""
    damaged_lines: tuple[int, ...] = ()
    """The numbers, from 1, of lines that could not be read and were skipped."""
    is_running: bool = False
    """The process is still going on, so a missing end is not a gap."""
    continues: bool = False
    """Of one training among several: it begins with weights that an earlier one has trained."""

    def of(self, *kinds: type[_Kind]) -> Iterator[_Kind]:
        """The events of these kinds."""
        if len(kinds) == 1 and kinds[0] in self._by_kind:
            return iter(self._by_kind[kinds[0]])  # type: ignore[arg-type]
        present = tuple(kind for kind in self._by_kind if issubclass(kind, kinds))
        if not present:
            return iter(())
        if len(present) == 1:
            return iter(self._by_kind[present[0]])  # type: ignore[arg-type]
        return (event for event in self.events if isinstance(event, kinds))

    @cached_property
    def _by_kind(self) -> dict[type[Event], Sequence[Event]]:
        """Rules ask some hundred times, and a long record has a million events."""
        found: dict[type[Event], list[Event]] = {}
        for event in self.events:
            found.setdefault(type(event), []).append(event)
        return dict(found)

    @property
    def started(self) -> RunStarted:
        """The first line; an empty one where that was damaged."""
        return next(self.of(RunStarted), RunStarted())

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

    def gaps(self) -> list[str]:
        """What it does not tell, a sentence each: what could not be watched, what is damaged, how it ended."""
        return gaps_in(self)

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The loss by step; by backward in a run that never steps. Non-finite values are absent."""
        return list(self._losses)

    @cached_property
    def _losses(self) -> list[tuple[int, float]]:
        gauges = list(self.of(Gauges))
        if all(gauge.step == 0 for gauge in gauges):
            return [(index, gauge.loss) for index, gauge in enumerate(gauges) if gauge.loss is not None]
        between = [pair for event in self.of(LossesBetween) for pair in zip(event.steps, event.values, strict=True)]
        known = [*((gauge.step, gauge.loss) for gauge in gauges), *between]
        return sorted(((step, loss) for step, loss in known if loss is not None), key=lambda pair: pair[0])

    def setup(self) -> Setup:
        """The live objects as this run last showed them, each loss and backward once per call site."""
        return self._setup

    @cached_property
    def _setup(self) -> Setup:
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
