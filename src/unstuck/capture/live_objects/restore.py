"""Puts models, optimizers and the random generators back to exactly where they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer


@contextlib.contextmanager
def untouched(*models: nn.Module, optimizers: Iterable[Optimizer] = ()) -> Iterator[None]:
    """Whatever happens inside, weights, buffers, gradients, modes, attributes, the states of optimizers and the
    random generators stay as they were."""
    states: list[_ModelState | _OptimizerState] = [_ModelState(model) for model in models]
    states += [_OptimizerState(optimizer) for optimizer in optimizers]
    with same_random_numbers():
        try:
            yield
        finally:
            for state in states:
                state.restore()


@contextlib.contextmanager
def same_pass(model: nn.Module) -> Iterator[None]:
    """Random numbers, buffers and what a pass keeps for the next one stay as they were; weights are left out."""
    attributes, buffers = [_Attributes(module) for module in model.modules()], Values(model.buffers())
    with same_random_numbers():
        try:
            yield
        finally:
            for one in attributes:
                one.restore()
            buffers.restore()


class _ModelState:
    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._values = Values(tensor for tensor in tensors if not is_lazy(tensor))
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._attributes = [_Attributes(module) for module in model.modules()]

    def restore(self) -> None:
        for attributes in self._attributes:
            attributes.restore()
        self._values.restore()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for parameter, trainable in self._trainable:
            parameter.requires_grad_(trainable)


class _OptimizerState:
    """The groups and the state; what a wrapper wraps is reached through these."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._state = optimizer.state
        self._before = {key: (entry, dict(entry)) for key, entry in optimizer.state.items() if isinstance(entry, dict)}
        tensors = (item for entry in optimizer.state.values() if isinstance(entry, dict) for item in entry.values())
        self._values = Values(item for item in tensors if isinstance(item, Tensor))
        inside = (item for entry, _ in self._before.values() for item in entry.values())
        self._containers = [(item, item.copy()) for item in inside if isinstance(item, dict | list | set)]
        self._groups = [(group, dict(group)) for group in optimizer.param_groups]
        self._attributes = _Attributes(optimizer)

    def restore(self) -> None:
        self._attributes.restore()
        for key in [key for key in self._state if key not in self._before]:
            del self._state[key]
        for entry, before in (*self._before.values(), *self._containers, *self._groups):
            refill(entry, before)
        self._values.restore()


class Values:
    """Copies of tensors, to compare with and to go back to."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._copies = {id(tensor): (tensor, tensor.detach().clone()) for tensor in tensors}

    def restore(self) -> None:
        """Give each tensor that has changed its old values."""
        with torch.no_grad():
            for tensor, value in self._copies.values():
                if not _same_bits(tensor, value):
                    # Not through the tensor itself: a graph of the user's that holds it is still good for backward().
                    tensor.data.copy_(value)

    def same(self, tensor: Tensor) -> bool:
        """Is this one still what it was, bit by bit?"""
        return _same_bits(tensor, self._copies[id(tensor)][1])


class _Attributes:
    """What an object's own dictionary holds, with the contents of containers and of tensors that are not parameters."""

    def __init__(self, owner: object) -> None:
        self._names = vars(owner)
        self._before = dict(self._names)
        self._containers = [
            (value, value.copy()) for value in self._before.values() if isinstance(value, dict | list | set)
        ]
        self._values = Values(v for v in self._before.values() if isinstance(v, Tensor) and _can_be_copied(v))

    def restore(self) -> None:
        refill(self._names, self._before)
        for value, before in self._containers:
            refill(value, before)
        self._values.restore()


def _can_be_copied(tensor: Tensor) -> bool:
    return not tensor.is_inference() and tensor.layout is torch.strided and not tensor.is_meta


def refill(container: Any, before: Any) -> None:
    """Give a dict, list or set what it held before, if it holds something else."""
    if _holds_the_same(container, before):
        return
    container.clear()
    container.extend(before) if isinstance(container, list) else container.update(before)


def _holds_the_same(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(key in container and container[key] is value for key, value in before.items())
    if isinstance(container, list):
        return all(one is other for one, other in zip(container, before, strict=True))
    return bool(container == before)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if type(one.detach()) is not Tensor or one.layout is not torch.strided:
        return torch.equal(one.detach(), other)
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    """NaN equals itself in bits, and 0 differs from -0."""
    return tensor.detach().reshape(-1).view(torch.uint8)


@contextlib.contextmanager
def same_random_numbers() -> Iterator[None]:
    """Afterwards torch, Python and numpy draw what they would have drawn."""
    python_state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
