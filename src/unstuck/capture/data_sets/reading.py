"""Reads one data set through its own loader, each example once, as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.data_sets.gathering import Gathered
from unstuck.capture.data_sets.sources import Batch, Source, of_one_size, tensors_of
from unstuck.capture.preview.showing import MOST_DRAWN, labelled, shown
from unstuck.capture.preview.vocabulary import class_names, decoded
from unstuck.events import TensorShown

MOST = 1_000_000
"""Examples of one data set."""
MOST_IN_STREAM = 100_000
DRAWS = 8
CHECKED = 8
"""Examples that are read twice."""
SEED = 20_262
MOST_SHOWN = 3


class Reading:
    """Reads one data set, in an order of our own: what is read when the time is over is a fair sample."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.size: int | None = None
        self.why = ""
        self.varies = False
        self.shown: list[TensorShown] = []
        self.draws: TensorShown | None = None
        self._gathered = Gathered(source.target)

    def read(self, until: float) -> Gathered:
        """As much as there is time for."""
        try:
            self._read_stream(until) if self.source.is_stream else self._read_numbers(until)
        except Exception as error:  # of the program's own code
            words = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self.why = f"Reading {self.source.name} failed after {self._gathered.read:,} examples: {words}"
        return self._gathered

    def _read_numbers(self, until: float) -> None:
        source = self.source
        numbers = source.numbers()
        self.size = len(numbers)
        if not len(numbers):
            self.why = f"{source.name} is empty."
            return
        torch.manual_seed(SEED)
        self._look_at(numbers)
        generator = torch.Generator().manual_seed(SEED)
        order = numbers[torch.randperm(len(numbers), generator=generator)[:MOST]]
        for at, batch in source.batches(order):
            self._take(batch, at.tolist())
            if time.monotonic() > until:
                break
        name = source.name
        if source.failed:
            number, error = next(iter(source.failed.items()))
            count = len(source.failed)
            which = f"Example {number}" if count == 1 else f"{count} examples, the first of them {number},"
            self.why = f"{which} of {name} cannot be read: {error}"
        elif not self._gathered.read:
            self.why = f"The batches of {name} hold no tensor with a row for each example."
        elif self._gathered.read < len(numbers):
            amount = f"{self._gathered.read:,} of the {len(numbers):,} examples of {name}"
            self.why = f"{amount} were read, picked at random: there was no time for more."

    def _read_stream(self, until: float) -> None:
        read = 0
        for batch in self.source.stream():
            tensors, size = of_one_size(tensors_of(batch))
            if not read:
                self._show(tensors)
            if size:
                self._take(batch, list(range(read, read + size)))
            read += size
            if time.monotonic() > until or read >= MOST_IN_STREAM:
                self.why = f"The first {read:,} examples of {self.source.name} were read; it did not end by then."
                return
        self.size = read

    def _take(self, batch: Any, numbers: list[int]) -> None:
        tensors = with_rows(batch, len(numbers))
        if any(name != self.source.target for name in tensors):
            self._gathered.add(tensors, numbers)

    def _look_at(self, numbers: Tensor) -> None:
        """The first examples, and whether one comes out the same twice."""
        first = numbers[:MOST_DRAWN]
        batch = next(self._of(first))
        self._show(batch)
        few = numbers[torch.linspace(0, len(numbers) - 1, min(CHECKED, len(numbers))).long()]
        once, again = next(self._of(few)), next(self._of(few))
        inputs = [name for name in once if name != self.source.target and name in again]
        self.varies = any(not _equal(once[name], again[name]) for name in inputs)
        if self.varies and inputs:
            draws = [next(self._of(few[:1]))[inputs[0]] for _ in range(DRAWS)]
            if len({tuple(one.shape) for one in draws}) == 1:
                self.draws = shown(inputs[0], torch.cat(draws), _no_words)

    def _of(self, numbers: Tensor) -> Iterator[Batch]:
        for at, batch in self.source.batches(numbers):
            yield with_rows(batch, len(at))

    def _show(self, tensors: Batch) -> None:
        target = tensors.get(self.source.target)
        names = class_names()
        words: list[str] = []
        if target is not None and target.numel() == len(target):
            words = [_word(value, names) for value in target.reshape(-1)[:MOST_DRAWN].tolist()]
        for name, tensor in list(tensors.items()):
            if name != self.source.target and len(self.shown) < MOST_SHOWN:
                self.shown.append(labelled(shown(name, tensor[:MOST_DRAWN], decoded), words))


def with_rows(batch: Any, size: int) -> Batch:
    """The tensors of a batch that have a row for each of so many examples."""
    tensors = tensors_of(batch)
    found = {
        name: tensor for name, tensor in tensors.items() if tensor.dim() and len(tensor) == size and tensor.numel()
    }
    if not found and isinstance(batch, tuple | list):  # lists of tensors, one for each example
        for index, items in enumerate(batch):
            if isinstance(items, tuple | list) and len(items) == size and _can_be_stacked(items):
                found[str(index)] = torch.stack(list(items))
    if found or size != 1:
        return found
    return {name: tensor[None] for name, tensor in tensors.items()}  # a loader without batches


def _can_be_stacked(items: Sequence[Any]) -> bool:
    return all(isinstance(item, Tensor) for item in items) and len({tuple(item.shape) for item in items}) == 1


def _word(value: float, names: tuple[str, ...]) -> str:
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return f"{value:.4g}" if isinstance(value, float) else str(int(value))


def _no_words(rows: Any) -> list[str]:
    return []


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(torch.nan_to_num(one.double()), torch.nan_to_num(other.double()))
