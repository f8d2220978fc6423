"""Where examples come from, and how to get each of them once: data sets behind loaders, and tables."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from unstuck.capture.trial.changed_inputs import TARGETS
from unstuck.events import Place
from unstuck.findings.data_sets import Role

CHUNK, MOST_AT_ONCE = 256, 2**22
"""Rows of tables that are picked together, and their numbers."""
DEEPEST = 8
MOST_DRAWN = 1_000_000
"""Numbers that a sampler of the script's own is asked for."""
MOST_FAILED = 50
USUAL_BATCH = 32
Batch = dict[str, Tensor]


class Source:
    """One data set, with the loader that it is read by, or tables that it consists of."""

    def __init__(
        self,
        name: str,
        role: Role,
        *,
        loader: DataLoader[Any] | None = None,
        dataset: Any = None,
        tables: Batch | None = None,
        place: Place | None = None,
    ) -> None:
        self.name, self.role, self.loader, self.place = name, role, loader, place
        self.dataset: Any = dataset if dataset is not None else getattr(loader, "dataset", None)
        self.tables = tables
        self.target = "target" if tables is not None and "target" in tables else ""
        """The name of the target among the tensors of a batch."""
        self.failed: dict[int, str] = {}
        """Examples that cannot be read, and why."""
        self.collate: Any = getattr(loader, "collate_fn", None)

    @property
    def kind(self) -> str:
        """What it is."""
        if self.tables is not None:
            return "Tensor"
        inner = self.dataset
        names = [type(inner).__name__]
        while isinstance(inner, Subset) and len(names) < DEEPEST:
            inner = inner.dataset
            names.append(type(inner).__name__)
        return " of ".join(names)

    @property
    def is_stream(self) -> bool:
        """Has it no numbers to ask for?"""
        return self.tables is None and (
            isinstance(self.dataset, IterableDataset) or not hasattr(type(self.dataset), "__getitem__")
        )

    def numbers(self) -> Tensor:
        """Of all examples that the loader can draw, each once."""
        if self.tables is not None:
            return torch.arange(len(next(iter(self.tables.values()))))
        size = len(self.dataset)
        sampler = sampler_of(self.loader)
        if isinstance(sampler, WeightedRandomSampler):
            return (torch.as_tensor(sampler.weights)[:size] > 0).nonzero().flatten()
        chosen = getattr(sampler, "indices", None)
        if chosen is not None and not isinstance(sampler, RandomSampler | SequentialSampler):
            return _whole(list(chosen), size)
        standard = sampler is None or type(sampler).__module__.startswith("torch.utils.data")
        if standard and not self._own_batches:
            return torch.arange(size)
        drawn: Any = getattr(self.loader, "batch_sampler", None) if self._own_batches else sampler
        flat = itertools.chain.from_iterable(drawn) if self._own_batches else iter(drawn)
        return _whole(list(itertools.islice(flat, MOST_DRAWN)), size)

    @property
    def in_order(self) -> bool:
        """Does the loader give examples in the order of their numbers?"""
        return not self._own_batches and type(sampler_of(self.loader)) is SequentialSampler

    @property
    def batch_size(self) -> int | None:
        """Of its loader. With a `batch_sampler`, the loader itself has none, and the sampler may not say."""
        own = getattr(self.loader, "batch_size", None)
        return own or getattr(getattr(self.loader, "batch_sampler", None), "batch_size", None)

    @property
    def is_batched(self) -> bool:
        """Does its loader put examples together?"""
        return self.loader is None or getattr(self.loader, "batch_sampler", None) is not None

    @property
    def _own_batches(self) -> bool:
        """Are its batches put together by a class of the program?"""
        batches = getattr(self.loader, "batch_sampler", None)
        return batches is not None and not type(batches).__module__.startswith("torch.utils.data")

    def roots(self, numbers: Tensor) -> tuple[Any, Tensor]:
        """The data set at the bottom, and the numbers there."""
        inner = self.dataset
        for _ in range(DEEPEST):
            if type(inner) is not Subset:
                break
            numbers = torch.as_tensor(list(inner.indices))[numbers]
            inner = inner.dataset
        return inner, numbers

    def batches(self, numbers: Tensor) -> Iterator[tuple[Tensor, Any]]:
        """The examples of these numbers as the loader would collate them."""
        tables = self.tables or _tables_of(self)
        if tables is not None:
            inner = numbers if self.tables is not None else self.roots(numbers)[1]
            width = max(table[:1].numel() for table in tables.values())
            many = max(1, min(CHUNK, MOST_AT_ONCE // max(1, width)))
            for at, rows in zip(torch.split(numbers, many), torch.split(inner, many), strict=True):
                picked = {name: table[rows.to(table.device)] for name, table in tables.items()}
                yield at, picked if self.tables is not None else tuple(picked.values())
            return
        size = (self.batch_size or USUAL_BATCH) if self.is_batched else 1
        collate = self.collate or default_collate
        for at in torch.split(numbers, size):
            read = [(number, item) for number in at.tolist() if (item := self._item(number)) is not None]
            if read:
                items = [item for _, item in read]
                yield torch.tensor([number for number, _ in read]), collate(items if self.is_batched else items[0])

    def prepared_as(self, other: Source) -> Source | None:
        """The same examples with the transform of another data set, where both have one."""
        if self.is_stream or self.tables is not None:
            return None
        own, others = bare(self.dataset), bare(other.dataset)
        if own is others or not {"transform"} <= vars(own).keys() & getattr(others, "__dict__", {}).keys():
            return None
        changed: Any = copy.copy(own)
        changed.transform = others.__dict__["transform"]
        if "transforms" in others.__dict__:  # torchvision keeps it there once more
            changed.transforms = others.__dict__["transforms"]
        roots = self.roots(torch.arange(len(self.dataset)))[1]
        found = Source(self.name, self.role, dataset=Subset(changed, roots.tolist()))
        found.collate, found.target = self.collate, self.target
        return found

    def _item(self, number: int) -> Any:
        """One example; None if it cannot be read."""
        try:
            return self.dataset[number]
        except Exception as error:
            self.failed[number] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            if len(self.failed) > MOST_FAILED:
                raise
            return None

    def stream(self) -> Iterator[Any]:
        """The batches of a stream."""
        loader = self.loader
        if loader is None:
            return iter(DataLoader(self.dataset, batch_size=USUAL_BATCH))
        if type(loader) is not DataLoader or (loader.batch_size is None and self.is_batched):
            return iter(loader)
        return iter(DataLoader(self.dataset, loader.batch_size, collate_fn=loader.collate_fn))


def sampler_of(loader: Any) -> Any:
    """What picks single examples. A loader with a `batch_sampler` has a sampler besides that it does not use."""
    own = getattr(loader, "sampler", None)
    return getattr(getattr(loader, "batch_sampler", None), "sampler", own)


def _tables_of(source: Source) -> Batch | None:
    """The tensors of a TensorDataset whose rows are collated as they are."""
    if source.collate not in (None, default_collate):
        return None
    inner = source.dataset
    while type(inner) is Subset:
        inner = inner.dataset
    if type(inner) is not TensorDataset or not source.is_batched:
        return None
    return {str(index): tensor for index, tensor in enumerate(inner.tensors)}


def _whole(numbers: list[Any], size: int) -> Tensor:
    found = torch.tensor([int(number) for number in numbers], dtype=torch.int64)
    is_there = torch.zeros(size, dtype=torch.bool)
    is_there[found[(found >= 0) & (found < size)]] = True
    return is_there.nonzero().flatten()


def tensors_of(batch: Any) -> Batch:
    """The tensors of a batch by name: keys, or places."""
    found: Batch = {}
    _collect(batch, "", found)
    return found


def _collect(value: Any, name: str, found: Batch) -> None:
    if isinstance(value, Tensor):
        if not value.is_sparse and not value.is_nested and not value.is_complex() and not value.is_quantized:
            found[name or "inputs"] = value
    elif isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        for key in list(value.keys()):
            _collect(value[key], f"{name}.{key}" if name else str(key), found)
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", None) or range(len(value))
        for key, item in zip(names, value, strict=False):
            _collect(item, f"{name}.{key}" if name else str(key), found)


def of_one_size(tensors: Batch) -> tuple[Batch, int]:
    """Those with one row for each example, and how many examples there are."""
    sizes = [len(tensor) for tensor in tensors.values() if tensor.dim()]
    if not sizes:
        return {}, 0
    size = max(set(sizes), key=sizes.count) if sizes.count(sizes[0]) < 2 else sizes[0]
    return {name: tensor for name, tensor in tensors.items() if tensor.dim() and len(tensor) == size}, size


def likely_target(tensors: Batch) -> str:
    """The target of a batch, by its name or its place; empty if it has none."""
    named = [name for name in tensors if TARGETS.search(name.rpartition(".")[2])]
    if named:
        return named[0]
    numbered = [name for name in tensors if name.isdigit()]
    return numbered[-1] if len(numbered) == len(tensors) and len(numbered) > 1 else ""


def bare(dataset: Any) -> Dataset[Any]:
    """The data set below all subsets."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    found: Dataset[Any] = dataset
    return found
