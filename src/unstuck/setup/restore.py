"""Puts a model and the random generators back to exactly where they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


@contextlib.contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, weights, buffers, gradients, modes and random generators stay as they were."""
    state = _ModelState(model)
    with _same_random_numbers():
        try:
            yield
        finally:
            state.restore()


class _ModelState:
    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._modes = [(module, module.training) for module in model.modules()]

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, value in self._values:
                if not _same_bits(tensor, value):
                    tensor.copy_(value)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for parameter, trainable in self._trainable:
            parameter.requires_grad_(trainable)
        for module, training in self._modes:
            module.training = training


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.is_floating_point():
        return bool(torch.allclose(one.detach(), other, rtol=0, atol=0, equal_nan=True))
    return torch.equal(one.detach(), other)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
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
