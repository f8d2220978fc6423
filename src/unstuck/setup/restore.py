"""Puts a model and the random generators back to exactly where they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


@contextlib.contextmanager
def untouched(*models: nn.Module) -> Iterator[None]:
    """Whatever happens inside, weights, buffers, gradients, modes and random generators stay as they were."""
    states = [_ModelState(model) for model in models]
    with _same_random_numbers():
        try:
            yield
        finally:
            for state in states:
                state.restore()


class _ModelState:
    def __init__(self, model: nn.Module) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]
        self._gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
        self._trainable = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._modes = [(module, module.training) for module in model.modules()]
        self._bindings: list[tuple[Any, dict[str, Any]]] = [
            (names, dict(names)) for module in model.modules() for names in (module._parameters, module._buffers)
        ]

    def restore(self) -> None:
        for names, before in self._bindings:
            if _differ(names, before):
                names.clear()
                names.update(before)
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


def _differ(names: dict[str, Any], before: dict[str, Any]) -> bool:
    return list(names) != list(before) or any(names[name] is not before[name] for name in before)


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
