"""Observes which target each input comes with: does an example keep its target when it comes again?"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.observers.data import arguments_of, has_weights, marks_of
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import Place, TargetsCompared, TargetsCopied
from unstuck.events.losses import CLASS_LOSSES

FEWEST_NUMBERS = 8
"""Of an example: one of fewer numbers may be equal to another by chance."""
_FEWEST_IDS = 16
_FEWEST_KINDS = 8
"""An example of whole numbers needs more of them, and of more values, to be one that no other equals by chance."""
_MOST_ROWS = 256
"""Of one batch."""
_FEW_ROWS = 8
_MOST_KNOWN = 8192
_MOST_PLACES = 4
_MOST_LOOKS = 400
_ENOUGH = 4096
"""Repeated examples, after which there is nothing more to learn."""
_FIRST_REPORT = 32
_LARGEST = 2**22
_MOST_LABELS = 64
_MOST_IDS = 4096


class _Table:
    """The examples that one line of the program compared with targets, and the targets they had first."""

    def __init__(self, loss: str) -> None:
        self.loss = loss
        self.first: dict[float, float] = {}
        self.looks = 0
        self.repeats = self.different = 0
        self.labels: Counter[float] = Counter()
        self.sums = [0.0] * 5
        """Over repeated examples: of the targets, theirs before, the squares of both, and the products."""
        self.next_report = _FIRST_REPORT
        self.recorded = 0

    def add(self, rows: list[float], targets: list[float]) -> None:
        self.looks += 1
        for row, target in zip(rows, targets, strict=True):
            if len(self.labels) <= _MOST_LABELS:
                self.labels[target] += 1
            before = self.first.get(row)
            if before is None:
                if len(self.first) < _MOST_KNOWN:
                    self.first[row] = target
                continue
            self.repeats += 1
            self.different += before != target
            for place, value in enumerate((target, before, target**2, before**2, target * before)):
                self.sums[place] += value

    @property
    def chance(self) -> float | None:
        """How often two targets would be equal if each were drawn at random; None where there are too many of them."""
        total = sum(self.labels.values())
        if len(self.labels) > _MOST_LABELS or not total:
            return None
        return sum((count / total) ** 2 for count in self.labels.values())

    @property
    def correlation(self) -> float | None:
        """Between the targets of an example and those it had first."""
        count = max(1, self.repeats)
        now, before, now_squared, before_squared, product = (value / count for value in self.sums)
        spread = (now_squared - now**2) * (before_squared - before**2)
        return (product - now * before) / math.sqrt(spread) if spread > 0 else None


class Pairs(Observer):
    """Follows the examples of the first model that is called in a window, up to the loss that they lead to."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._rows: list[float] = []
        """Those of the batch that was given to the model of this window."""
        self._length = 0
        self._models = 0
        self._asked = False
        """Was a model called without gradients? It may compute the targets."""
        self._ids: list[tuple[tuple[int, ...], Tensor]] = []
        """Ids that the model was given: the shape, and copies of the first ones."""
        self._copied: dict[Place | None, TargetsCopied] = {}
        self._lines: set[Place | None] = set()
        """Lines that have compared something in this window."""
        self._tables: dict[Place | None, _Table] = {}
        protect = watch.guard.protect
        self._read = protect("inputs and targets", self._read_rows)
        self._pair = protect("inputs and targets", self._pair_rows)
        self._match = protect("inputs and targets", self._match_ids)

    def model_ran(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        """A model was called in a sampled window."""
        if not torch.is_grad_enabled():
            self._asked = True
        elif module.training and self._is_time() and has_weights(module):
            self._read(module, arguments)

    def loss(self, loss: str, source: Tensor, target: Tensor, place: Place | None) -> None:
        """A loss was computed in a sampled window."""
        if place in self._lines or self._models != 1 or not source.requires_grad:
            return
        self._lines.add(place)
        if self._ids and loss in CLASS_LOSSES and is_whole(target):
            self._match(loss, target, place)
        if self._rows and not self._asked:
            self._pair(loss, source, target, place)

    def window_began(self, ended: Ended) -> None:
        """What follows belongs to another batch."""
        if ended.recorded:
            self._rows, self._ids, self._models, self._asked = [], [], 0, False
            self._lines.clear()
            for place, table in self._tables.items():
                if table.repeats >= table.next_report:
                    table.next_report = 2 * table.repeats
                    self._tell(place, table)

    def finish(self) -> None:
        """The run ended."""
        for place, table in self._tables.items():
            if table.repeats > table.recorded:
                self._tell(place, table)
        for copied in self._copied.values():
            self._watch.tell(copied)

    def _is_time(self) -> bool:
        tables = self._tables.values()
        waiting = not tables or any(table.looks < _MOST_LOOKS and table.repeats < _ENOUGH for table in tables)
        return waiting and may_measure()

    def _read_rows(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        tensors = [tensor for _, tensor in arguments_of(module, arguments) if tensor.dim() > 0]
        if not tensors or any(tensor.requires_grad for tensor in tensors):
            return  # what another model has computed
        self._models += 1
        with reading():
            ids = [tensor for tensor in tensors if is_whole(tensor) and tensor.is_cpu and tensor.dim() == 2]
            self._ids = [(tuple(tensor.shape), tensor.reshape(-1)[:_MOST_IDS].clone()) for tensor in ids]
        length = len(tensors[0])
        rows = [tensor for tensor in tensors if len(tensor) == length and (is_plain(tensor) or is_whole(tensor))]
        on_device = any(not tensor.is_cpu for tensor in rows)
        if length < 2 or not rows or (on_device and not self._watch.window.is_survey):
            return
        if sum(tensor[:_MOST_ROWS].numel() for tensor in rows) > _LARGEST:
            return
        with reading():
            few = [tensor.detach()[:_MOST_ROWS] for tensor in rows]
            if any(map(_is_rich, few)):
                marks = torch.stack([marks_of(tensor).cpu() for tensor in few]).sum(0)
                self._rows, self._length = marks.tolist(), length

    def _match_ids(self, loss: str, target: Tensor, place: Place | None) -> None:
        """Are the targets the ids that the model was given, each at its own position?"""
        known = self._copied.get(place)
        if (known is None and len(self._copied) >= _MOST_PLACES) or not target.is_cpu:
            return
        with reading():
            flat = target.detach().reshape(-1)[:_MOST_IDS]
            same = next(
                (
                    shape
                    for shape, ids in self._ids
                    if math.prod(shape) == target.numel() and _kinds(ids) > 2 and torch.equal(ids.to(flat.dtype), flat)
                ),
                None,
            )
        known = known or TargetsCopied(place=place, loss=loss)
        counted = TargetsCopied(
            step=self._watch.window.steps,
            place=place,
            loss=loss,
            shape=same or known.shape,
            copied=known.copied + (same is not None),
            looked_at=known.looked_at + 1,
            given=max(known.given, len(self._ids)),
        )
        self._copied[place] = counted
        if counted.looked_at in (10, 30, 100):
            self._watch.tell(counted)

    def _pair_rows(self, loss: str, source: Tensor, target: Tensor, place: Place | None) -> None:
        readable = (is_plain(target) or is_whole(target)) and 0 < target.numel() <= _LARGEST
        if target.dim() == 0 or len(target) != self._length or not readable or target.requires_grad:
            return
        if place not in self._tables and len(self._tables) >= _MOST_PLACES:
            return
        with reading():
            few = target.detach()[:_MOST_ROWS]
            if _is_position(few):
                return
            values = marks_of(few).tolist()
        if all(math.isfinite(value) for value in values):
            self._tables.setdefault(place, _Table(loss)).add(self._rows, values)

    def _tell(self, place: Place | None, table: _Table) -> None:
        table.recorded = table.repeats
        self._watch.tell(
            TargetsCompared(
                step=self._watch.window.steps,
                place=place,
                loss=table.loss,
                examples=len(table.first),
                repeats=table.repeats,
                different=table.different,
                chance=table.chance,
                correlation=table.correlation,
            )
        )


def _is_rich(rows: Tensor) -> bool:
    """Does an example hold so much that two equal ones are the same example?"""
    rows = rows[:_FEW_ROWS]
    numbers = rows[0].numel()
    if is_whole(rows):
        return numbers >= _FEWEST_IDS and _kinds(rows) >= _FEWEST_KINDS
    return numbers >= FEWEST_NUMBERS and bool((rows != rows.round()).any(0).sum() >= FEWEST_NUMBERS)


def _kinds(rows: Tensor) -> int:
    """How many different values there are."""
    values = rows.reshape(-1).sort().values
    return int((values.diff() != 0).sum()) + 1


def _is_position(target: Tensor) -> bool:
    """Is the target the place in the batch, as in contrastive learning?"""
    return target.dim() == 1 and is_whole(target) and bool((target.diff() == 1).all())
