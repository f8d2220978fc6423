"""Separates the trainings of one program: comparisons, pretraining and fine-tuning, folds, a probe at the end.

Optimizers whose steps interleave train together: a GAN, an actor and a critic, or two that use one backward. One whose
first step comes after the last step of all others begins a training of its own, with a record of its own.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.events import (
    Backward,
    BatchSeen,
    Crash,
    EpisodesEnded,
    Evaluated,
    Event,
    Forward,
    FrozenMoved,
    Gauges,
    LoaderSeen,
    LossCall,
    LossesBetween,
    ModeChange,
    ModelSeen,
    Note,
    OptimizerSeen,
    OptimizerStep,
    RunEnded,
    RunStarted,
    ScheduleEnded,
    SchedulerSeen,
    Seeded,
    StateLoaded,
    StepSkipped,
    TensorsNamed,
    ZeroGrad,
)

if TYPE_CHECKING:
    from unstuck.record import Record

MOST = 20
"""A program with more trainings than this builds an optimizer for each task or round: it is one training."""
FEWEST_REBUILT = 3
"""So many optimizers in a row on one model, built on one line, are one that is built again and again."""
EVERYWHERE = (RunStarted, RunEnded, Note, Seeded)


class Training(msgspec.Struct, frozen=True, dict=True):
    """One training of a program."""

    number: int
    """From 1, in the order in which they began."""
    count: int
    """How many there are."""
    record: Record
    """Its own events; its steps count from 0."""
    optimizers: tuple[str, ...] = ()
    """The labels of those that step."""
    models: tuple[str, ...] = ()
    """The labels of what they train."""
    continues: int = 0
    """The number of the earlier training whose weights it goes on with; 0 if it begins with untrained ones."""
    what: str = ""
    """As in `Adam on Net`."""

    @property
    def name(self) -> str:
        """As in `training 2 of 3: Adam on Net`; empty where there is only one."""
        return f"training {self.number} of {self.count}: {self.what}" if self.count > 1 else ""

    @property
    def is_shared(self) -> bool:
        """Do several optimizers minimise losses of their own, none of which need fall?"""
        return len(players(self.record)) > 1


def trainings_of(record: Record) -> tuple[Training, ...]:
    """The trainings in a record, at least one: a run that never steps is one as well."""
    groups = _groups(record)
    if len(groups) > MOST or not (len(groups) > 1 or any(group.rebuilt for group in groups)):
        return (Training(1, 1, record, tuple(label for group in groups for label in group.labels)),)
    divided = _Divided(record, groups)
    return tuple(divided.training(number) for number in range(len(groups)))


def players(record: Record) -> dict[str, list[tuple[int, float]]]:
    """By optimizer, the losses that it minimises. One that steps without a backward of its own, right after another,
    uses the gradients of the same loss and is not listed; two losses that precede one step have a player each."""
    found: dict[str, list[tuple[int, float]]] = {}
    stepping = {step.optimizer for step in record.of(OptimizerStep)}
    stepping |= {gauge.optimizer for gauge in record.of(Gauges) if gauge.optimizer}
    only = next(iter(stepping)) if len(stepping) == 1 else ""
    for gauge in record.of(Gauges):
        if gauge.loss is not None:
            found.setdefault(gauge.optimizer or only, []).append((gauge.step, gauge.loss))
    for event in record.of(LossesBetween):
        pairs = zip(event.steps, event.values, strict=True)
        known = [(step, value) for step, value in pairs if value is not None]
        found.setdefault(event.optimizer or only, []).extend(known)
    riding = {label for label in stepping if _rides(record, label)}
    own = {label: sorted(pairs) for label, pairs in found.items() if label not in riding}
    if len(own) < len(stepping) and _has_several_losses(record):
        return {label: own.get(label, []) for label in sorted(stepping)}
    return own if own else {label: [] for label in sorted(stepping - riding)}


def _rides(record: Record, label: str) -> bool:
    """Do most steps of this optimizer follow those of another one, without a backward in between?"""
    alone = followed = 0
    backward, last = False, ""
    for event in record.of(Backward, OptimizerStep):
        if isinstance(event, Backward):
            backward = True
            continue
        assert isinstance(event, OptimizerStep)
        if event.optimizer == label:
            followed += not backward and last not in ("", label)
            alone += backward or last in ("", label)
        backward, last = event.inside_closure and backward, event.optimizer
    return followed > alone


def _has_several_losses(record: Record) -> bool:
    """Are losses of different lines back-propagated before the steps of several optimizers?"""
    places: set[object] = set()
    mixed = windows = 0
    for event in record.of(Backward, OptimizerStep):
        if isinstance(event, Backward):
            places.add(event.place and event.place.key)
        elif places:
            windows += 1
            mixed += len(places) > 1
            places = set()
    return 2 * mixed > windows


class _Group:
    """Optimizers that train together, and the steps between which they do."""

    def __init__(self, label: str, first: int, last: int) -> None:
        self.labels = [label]
        self.first = first
        self.last = last
        self.rebuilt = False
        """Is it one optimizer that the program builds again and again?"""


def _groups(record: Record) -> list[_Group]:
    """By the steps of each optimizer: what overlaps belongs together."""
    spans: dict[str, tuple[int, int]] = {}
    for label, step in _steps(record):
        first, last = spans.get(label, (step, step))
        spans[label] = (min(first, step), max(last, step))
    groups: list[_Group] = []
    for label, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if groups and first <= groups[-1].last:
            groups[-1].labels.append(label)
            groups[-1].last = max(groups[-1].last, last)
        else:
            groups.append(_Group(label, first, last))
    return _without_rebuilt(record, groups)


def _steps(record: Record) -> Iterator[tuple[str, int]]:
    for losses in record.of(LossesBetween):
        yield from ((losses.optimizer, step) for step in losses.steps if losses.optimizer)
    yield from ((gauges.optimizer, gauges.step) for gauges in record.of(Gauges) if gauges.optimizer)
    yield from ((step.optimizer, step.step) for step in record.of(OptimizerStep) if step.optimizer)
    yield from ((skipped.optimizer, skipped.step) for skipped in record.of(StepSkipped) if skipped.optimizer)


def _without_rebuilt(record: Record, groups: list[_Group]) -> list[_Group]:
    """Unite those of an optimizer that a loop builds again and again, as some do to lower the rate."""
    built: dict[str, object] = {}
    continues: dict[str, str] = {}
    for event in record.of(OptimizerSeen):
        built.setdefault(event.optimizer, (event.kind, event.place))
        continues[event.optimizer] = event.continues
    chains: list[list[_Group]] = []
    for group in groups:
        last = chains[-1][-1] if chains else None
        one, other = group.labels[0], last.labels[0] if last else ""
        alone = last is not None and len(group.labels) == len(last.labels) == 1
        if alone and continues.get(one) == other and built.get(one) == built.get(other):
            chains[-1].append(group)
        else:
            chains.append([group])
    losses = dict(players(record)) if any(len(chain) >= FEWEST_REBUILT for chain in chains) else {}
    united: list[_Group] = []
    for chain in chains:
        if len(chain) >= FEWEST_REBUILT and _goes_on([losses.get(group.labels[0], []) for group in chain]):
            whole = _Group(chain[0].labels[0], chain[0].first, chain[-1].last)
            whole.rebuilt = True
            whole.labels += [group.labels[0] for group in chain[1:]]
            united.append(whole)
        else:
            united += chain
    return united


def _goes_on(losses: Sequence[list[tuple[int, float]]]) -> bool:
    """Does each begin nearer to where the one before it ended than to where that began? Else it begins afresh."""
    for before, after in itertools.pairwise(losses):
        if not before or not after:
            continue
        start, end, then = before[0][1], before[-1][1], after[0][1]
        if abs(then - end) > abs(then - start):
            return False
    return True


class _Divided:
    """The events of a record, shared out among groups of optimizers."""

    def __init__(self, record: Record, groups: list[_Group]) -> None:
        self._record = record
        self._groups = groups
        self._group_of = {label: number for number, group in enumerate(groups) for label in group.labels}
        self._schedulers = {event.scheduler: event.optimizer for event in record.of(SchedulerSeen)}
        self._kinds = {event.optimizer: event.kind for event in record.of(OptimizerSeen)}
        self._trained: list[dict[str, None]] = [{} for _ in groups]
        self._source: list[int | None] = [None] * len(groups)
        for event in record.of(OptimizerSeen):
            number = self._group_of.get(event.optimizer)
            if number is None:
                continue
            self._trained[number].update(dict.fromkeys(event.models))
            source = self._group_of.get(event.continues)
            if source is not None and source < number:
                self._source[number] = max(source, self._source[number] or 0)
        self._models = {event.model: event.kind for event in record.of(ModelSeen)}
        self._owners = self._shared_out()
        self._called = [self._models_called(number) for number in range(len(groups))]

    def training(self, number: int) -> Training:
        """One of them, with its own record."""
        from unstuck.record.record import Record

        group, count = self._groups[number], len(self._groups)
        source = self._source_of(number)
        events = tuple(_rebased(event, group) for event in self._events(number))
        whole = self._record
        own = Record(
            whole.path,
            events,
            whole.incomplete,
            whole.damaged_lines,
            is_running=whole.is_running,
            continues=source is not None,
        )
        labels, models = tuple(group.labels), tuple(self._trained[number])
        continues = 0 if source is None else source + 1
        return Training(number + 1, count, own, labels, models, continues, self._what(number, source))

    def _what(self, number: int, source: int | None) -> str:
        labels = self._groups[number].labels
        kinds = list(dict.fromkeys(self._kinds.get(label, label) for label in labels))
        models = list(dict.fromkeys(self._models.get(model, model) for model in self._trained[number]))
        again = source is not None and not set(self._trained[number]).isdisjoint(self._trained[source])
        same = "the same " if again else ""
        return " and ".join(kinds) + (f" on {same}{' and '.join(models)}" if models else "")

    def _source_of(self, number: int) -> int | None:
        """The earlier training whose weights it uses: those it goes on to train, or those of a model that it calls in
        most of its steps, as a probe does."""
        if self._source[number] is not None:
            return self._source[number]
        helping = self._called[number].difference(self._trained[number])
        for earlier in reversed(range(number)):
            if not self._parameters(helping).isdisjoint(self._parameters(self._trained[earlier])):
                return earlier
        return None

    def _parameters(self, models: Collection[str]) -> set[int]:
        """Identities of the parameters of models: one may be a part of another."""
        seen = (event for event in self._record.of(ModelSeen) if event.model in models)
        return {fact.key for event in seen for fact in event.parameters}

    def _models_called(self, number: int) -> set[str]:
        steps: set[int] = set()
        called: dict[str, set[int]] = {}
        for event, owner in zip(self._record.events, self._owners, strict=True):
            if owner != number:
                continue
            if isinstance(event, OptimizerStep):
                steps.add(event.step)
            elif isinstance(event, Forward):
                called.setdefault(event.model, set()).add(event.step)
        return {model for model, when in called.items() if 2 * len(when & steps) > len(steps)}

    def _shared_out(self) -> list[int]:
        """Of every event the group it belongs to."""
        starts = [group.first for group in self._groups]
        begun = [False] * len(starts)
        owners: list[int] = []
        for event in self._record.events:
            label = getattr(event, "optimizer", None) or self._schedulers.get(getattr(event, "scheduler", ""))
            own = self._group_of.get(label) if label else None
            if own is not None:
                if own and event.step == starts[own]:
                    begun[own] = True
                owners.append(own)
                continue
            number = max(0, bisect_right(starts, event.step) - 1)
            # What happens between two trainings has the number of the first step of the second.
            if number and event.step == starts[number] and not begun[number]:
                begun[number] = self._begins(event, number)
                number -= not begun[number]
            elif isinstance(event, Evaluated) and number and event.step == starts[number]:
                number -= event.model in self._trained[number - 1]
            owners.append(number)
        return owners

    def _begins(self, event: Event, number: int) -> bool:
        """Does this belong to the training that follows, rather than to the evaluation of the one before?"""
        if isinstance(event, Forward):
            return event.grad_enabled and event.output_requires_grad is not False
        if isinstance(event, LossCall):
            return event.output_requires_grad is True
        if isinstance(event, ModeChange):
            return event.training
        if isinstance(event, ModelSeen | StateLoaded):
            return event.model not in self._trained[number - 1]
        return isinstance(event, Backward | ZeroGrad | BatchSeen)

    def _events(self, number: int) -> Iterator[Event]:
        record, last = self._record, number == len(self._groups) - 1
        end = max((at for at, owner in enumerate(self._owners) if owner <= number), default=0)
        early = {event.loader for event in record.events[: end + 1] if isinstance(event, LoaderSeen)}
        models = self._called[number].union(self._trained[number])
        rebuilt = self._groups[number].labels[1:] if self._groups[number].rebuilt else ()
        for event, owner in zip(record.events, self._owners, strict=True):
            if isinstance(event, EVERYWHERE):
                yield event
            elif isinstance(event, Crash):
                if last:
                    yield event
            elif isinstance(event, LoaderSeen):
                if event.loader in early:
                    yield event
            elif isinstance(event, TensorsNamed) and event.optimizer in rebuilt:
                continue  # the columns are those of the first
            elif owner == number or (owner < number and isinstance(event, ModelSeen) and event.model in models):
                yield event


def _rebased(event: Event, group: _Group) -> Event:
    """With the steps counted from the first one of its training."""
    changes: dict[str, Any] = {}
    if event.step and group.first:
        changes["step"] = max(0, event.step - group.first)
    if isinstance(event, LossesBetween | EpisodesEnded) and group.first:
        changes["steps"] = tuple(max(0, step - group.first) for step in event.steps)
    elif isinstance(event, FrozenMoved) and group.first:
        changes["since"] = max(0, event.since - group.first)
    elif isinstance(event, ScheduleEnded):
        changes["steps"] = min(event.steps, group.last - group.first + 1)
    elif isinstance(event, RunEnded):
        changes["steps"] = group.last - group.first + 1
    if group.rebuilt and getattr(event, "optimizer", "") in group.labels[1:]:
        changes["optimizer"] = group.labels[0]
    return msgspec.structs.replace(event, **changes) if changes else event
