"""Copies of tensors in which some examples of the batch are others: what differs in them depends on those examples.

A shadow belongs to a piece of memory, so that views have theirs without more work, and a change in place is one of the
shadow too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

GROUPS = 6
"""Examples are divided at random into so many groups, and those of one group are exchanged in each copy."""
RELATIVE = 1e-5
"""Differences below this share of the largest number are rounding."""


class Shadow:
    """One piece of memory, in as many versions as there are groups."""

    __slots__ = ("births", "is_doubtful", "is_mixed", "start", "stop", "storage", "versions")

    def __init__(self, storage: Any, start: int, stop: int, versions: list[Tensor]) -> None:
        self.storage = storage  # keeps its address from being used again
        self.start = start
        self.stop = stop
        self.versions = versions
        self.is_mixed = False
        self.is_doubtful = False
        """Could it be that its rows are not examples?"""
        self.births: frozenset[int] = frozenset()
        """The mixtures that it comes from, by number."""


class Shadows:
    """All shadows of one iteration."""

    def __init__(self, most_bytes: int) -> None:
        self.room = most_bytes
        self._by_storage: dict[int, list[Shadow]] = {}

    def of(self, tensor: Tensor) -> Shadow | None:
        """The shadow that this tensor lies in."""
        if tensor.layout is not torch.strided or not self._by_storage or tensor.is_meta or not tensor.numel():
            return None
        known = self._by_storage.get(address(tensor))
        if known is None:
            return None
        start = int(tensor.storage_offset())
        stop = start + extent(tensor)
        for shadow in reversed(known):
            if shadow.start <= start and stop <= shadow.stop and shadow.versions[0].dtype == tensor.dtype:
                return shadow
        return None

    def versions(self, tensor: Tensor) -> list[Tensor]:
        """The tensor as it is in each group; empty if it has no shadow."""
        shadow = self.of(tensor)
        if shadow is None:
            return []
        offset = tensor.storage_offset() - shadow.start
        return [version.as_strided(tensor.size(), tensor.stride(), offset) for version in shadow.versions]

    def add(self, tensor: Tensor, versions: Sequence[Tensor]) -> Shadow:
        """Give a tensor these versions."""
        size = extent(tensor)
        flat = []
        for version in versions:
            memory = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
            memory.as_strided(tensor.size(), tensor.stride(), 0).copy_(version)
            flat.append(memory)
        start = int(tensor.storage_offset())
        shadow = Shadow(tensor.untyped_storage(), start, start + size, flat)
        self._by_storage.setdefault(address(tensor), []).append(shadow)
        self.room -= size * tensor.element_size() * len(flat)
        return shadow

    def forget(self, tensor: Tensor) -> None:
        """What was written over no longer depends on examples as far as is known."""
        self._by_storage.pop(address(tensor), None)

    def changes(self, tensor: Tensor) -> list[Tensor]:
        """For each group, which elements depend on it."""
        return [differs(tensor, version) for version in self.versions(tensor)]


def address(tensor: Tensor) -> int:
    """Of its memory, the same for all views of it."""
    return int(tensor.untyped_storage().data_ptr())


def extent(tensor: Tensor) -> int:
    """Elements of memory from its first to its last."""
    return 1 + sum((size - 1) * int(step) for size, step in zip(tensor.size(), tensor.stride(), strict=True))


def differs(tensor: Tensor, version: Tensor) -> Tensor:
    """Element by element, beyond rounding."""
    if not tensor.is_floating_point():
        return tensor != version
    difference = (tensor - version).abs()
    largest = torch.nan_to_num(tensor.abs(), 0.0, 0.0, 0.0).max() if tensor.numel() else 0.0
    is_one_nan = torch.isnan(tensor) != torch.isnan(version)
    return (torch.nan_to_num(difference, 0.0, 0.0) > RELATIVE * largest) | is_one_nan


def is_mixed(changes: Sequence[Tensor]) -> bool:
    """Does some element depend on examples of two groups?"""
    count = torch.zeros_like(changes[0], dtype=torch.uint8)
    for change in changes:
        count += change
    return bool((count > 1).any())


def example_axes(changes: Sequence[Tensor]) -> list[int] | None:
    """The axes at each index of which no element depends on two groups; None if it depends on fewer than two.

    Rows of an axis that unites examples and positions belong to one example each as well.
    """
    if sum(bool(change.any()) for change in changes) < 2:
        return None
    shape = changes[0].shape
    return [axis for axis in range(len(shape)) if shape[axis] > 1 and _is_separate(changes, axis)]


def _is_separate(changes: Sequence[Tensor], axis: int) -> bool:
    others = [other for other in range(changes[0].dim()) if other != axis]
    count = torch.zeros(changes[0].shape[axis], dtype=torch.uint8, device=changes[0].device)
    for change in changes:
        count += change.any(dim=others) if others else change
    return bool((count <= 1).all())


def exchanged(tensor: Tensor, axis: int, groups: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensor with the examples of each group replaced by others."""
    size = tensor.shape[axis]
    rows = torch.arange(size, device=tensor.device)
    flat = tensor.movedim(axis, 0).reshape(size, -1)
    shifts = range(1, min(size, 8))
    best = max(shifts, key=lambda shift: int((flat != flat.roll(-shift, 0)).any(1).sum()), default=0)
    for group in groups:
        order = torch.where(group.to(tensor.device), (rows + best) % size, rows)
        yield tensor.index_select(axis, order)


def in_groups(examples: int) -> list[Tensor]:
    """Which examples belong to each group: at random, but always the same."""
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    count = min(GROUPS, examples)
    return [(order % count) == group for group in range(count)]
