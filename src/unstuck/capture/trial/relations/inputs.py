"""Parts of what a model is given, exchanged between the examples of a batch or between positions of a sequence."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unstuck.capture.trial.lab import is_data, map_tensors

MOST_BLOCKS = 8
MOST_COLUMNS = 32
FEWEST_POSITIONS = 4


class Given(NamedTuple):
    """The data that a model was called with."""

    model: str
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]


def given_to(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """Tensors without gradients, in the order in which `map_tensors` reaches them, by the names of the parameters."""
    names: list[str] = []
    tensors: list[Tensor] = []
    for name, value in (*zip(_positional(module, len(args)), args, strict=True), *kwargs.items()):
        found = _data_in(value)
        names += [name] if len(found) == 1 else [f"{name}[{index}]" for index in range(len(found))]
        tensors += [tensor.detach() for tensor in found]
    return Given(type(module).__name__, tuple(names), tuple(tensors))


def _data_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(value, lambda tensor: found.append(tensor) if is_data(tensor) else None)
    return found


def _positional(module: nn.Module, count: int) -> list[str]:
    """What the parameters of `forward` are called."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [named[i] if i < len(named) else f"argument {i + 1}" for i in range(count)]


class Exchange(NamedTuple):
    """A part of one tensor that other examples get, or positions that are permuted."""

    call: tuple[int, int]
    tensor: int
    name: str
    model: str
    what: str = ""
    """`columns`, `positions`, `features` or `channels`; empty for all of it."""
    axis: int = 0
    start: int = 0
    stop: int = 0
    size: int = 0
    shift: int = 1
    order: tuple[int, ...] = ()
    """Positions along the axis in another order, instead of an exchange between examples."""
    together: tuple[int, ...] = ()
    """Other tensors that are reordered with it, such as masks."""

    def applied(self, index: int, tensor: Tensor) -> Tensor:
        """The tensor of this number, changed if it is the one that this is about."""
        if self.order:
            wanted = index == self.tensor or index in self.together
            return tensor[:, list(self.order)] if wanted else tensor
        if index != self.tensor:
            return tensor
        if not self.what:
            return tensor[self._rows(tensor)]
        changed = tensor.clone()
        part = changed.narrow(self.axis, self.start, self.stop - self.start)
        part.copy_(part[self._rows(tensor)].clone())
        return changed

    def _rows(self, tensor: Tensor) -> Tensor:
        """Some examples twice and others not at all: a mean over the batch is blind to their order."""
        count = len(tensor)
        rows = torch.arange(count, device=tensor.device) // 2
        return rows if self.shift == 1 else count - 1 - rows.flip(0)

    @property
    def words(self) -> str:
        """`columns 4 to 7 (of 8) of x`"""
        if not self.what:
            return f"`{self.name}`"
        if self.stop - self.start == 1:
            return f"{self.what[:-1]} {self.start} (of 0 to {self.size - 1}) of `{self.name}`"
        return f"{self.what} {self.start} to {self.stop - 1} (of 0 to {self.size - 1}) of `{self.name}`"


def whole_tensors(given: dict[tuple[int, int], Given]) -> Iterator[Exchange]:
    """Each tensor that differs between examples."""
    for call, one in given.items():
        for index, (name, tensor) in enumerate(zip(one.names, one.tensors, strict=True)):
            exchange = Exchange(call, index, name, one.model)
            if tensor.dim() and len(tensor) > 1 and not torch.equal(exchange.applied(index, tensor), tensor):
                yield exchange


def blocks(whole: Exchange, tensor: Tensor) -> Iterator[Exchange]:
    """Parts of a tensor that differ between examples: columns of a table, positions, features, channels."""
    for what, axis, count in _axes(tensor):
        size = tensor.shape[axis]
        edges = [round(size * i / count) for i in range(count + 1)]
        for start, stop in itertools.pairwise(edges):
            block = whole._replace(what=what, axis=axis, start=start, stop=stop, size=size)
            if not torch.equal(block.applied(block.tensor, tensor), tensor):
                yield block


def _axes(tensor: Tensor) -> Iterator[tuple[str, int, int]]:
    """What they are called, and in how many blocks an axis is cut."""
    size = tensor.shape
    if tensor.dim() == 2 and tensor.is_floating_point() and size[1] > 1:
        yield "columns", 1, min(MOST_COLUMNS, size[1])
    elif tensor.dim() == 2 and size[1] >= FEWEST_POSITIONS:
        yield "positions", 1, min(MOST_BLOCKS, size[1] // 2)
    elif tensor.dim() == 3 and tensor.is_floating_point():
        if size[1] >= FEWEST_POSITIONS:
            yield "positions", 1, min(MOST_BLOCKS, size[1] // 2)
        if size[2] > 1:
            yield "features", 2, min(MOST_BLOCKS, size[2])
    elif tensor.dim() == 4 and 1 < size[1] <= MOST_BLOCKS:
        yield "channels", 1, size[1]


def reordered(given: dict[tuple[int, int], Given]) -> Iterator[Exchange]:
    """Sequences with their positions in another order, the same for all examples; masks go with them."""
    for call, one in given.items():
        for index, (name, tensor) in enumerate(zip(one.names, one.tensors, strict=True)):
            if not _is_sequence(tensor, one):
                continue
            length = tensor.shape[1]
            generator = torch.Generator().manual_seed(length)
            order = tuple(torch.randperm(length, generator=generator).tolist())
            masks = [
                i
                for i, other in enumerate(one.tensors)
                if i != index and other.shape == tensor.shape[:2] and _is_mask(other)
            ]
            exchange = Exchange(call, index, name, one.model, axis=1, size=length, order=order, together=tuple(masks))
            if not torch.equal(exchange.applied(index, tensor), tensor):
                yield exchange


def _is_sequence(tensor: Tensor, given: Given) -> bool:
    """Ids [N, T] or features [N, T, F]. Two rows of ids next to another input may be the edges of a graph."""
    if tensor.dim() not in (2, 3) or tensor.shape[1] < FEWEST_POSITIONS or len(tensor) < 2:
        return False
    if tensor.dim() == 3:
        return tensor.is_floating_point()
    is_edges = len(tensor) == 2 and len(given.tensors) > 1
    return not tensor.is_floating_point() and not is_edges and not _is_mask(tensor) and not _are_positions(tensor)


def _is_mask(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def _are_positions(tensor: Tensor) -> bool:
    return torch.equal(tensor, torch.arange(tensor.shape[1], device=tensor.device).expand_as(tensor).to(tensor.dtype))
