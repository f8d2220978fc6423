"""Finds what is frozen and moves all the same: parameters in a step, statistics of normalisation layers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.tensors import is_plain, may_measure, norm, reading
from unstuck.capture.objects import Model, parameters_of
from unstuck.capture.torch_hooks.internals import NormBase
from unstuck.capture.watch import Watch
from unstuck.events import FrozenMoved

_LOOKED_AT = 4096
"""Elements of each parameter that are compared."""
_MOST_TENSORS = 64
_MOST_TOLD = 4
_NAMES = 20


class _Before(NamedTuple):
    optimizer: int
    parameters: list[weakref.ref[Tensor]]
    values: Tensor


class FrozenParameters:
    """Compares, across a sampled step, parameters that are frozen and still hold a gradient: only those can move."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._before: _Before | None = None
        self._told: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()

    def before(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step, in a sampled window."""
        self._before = None
        if not self._watch.is_listening() or self._told.get(optimizer, 0) >= _MOST_TOLD:
            return
        frozen = [p for p in parameters_of(optimizer) if not p.requires_grad and p.grad is not None]
        frozen = [parameter for parameter in frozen if is_plain(parameter)][:_MOST_TENSORS]
        if frozen and may_measure():
            self._before = _Before(id(optimizer), [weakref.ref(p) for p in frozen], _sample(frozen))

    def after(self, optimizer: Optimizer) -> None:
        """It has stepped."""
        before, self._before = self._before, None
        if before is None or before.optimizer != id(optimizer):
            return
        watch = self._watch
        parameters = [
            parameter for parameter in (reference() for reference in before.parameters) if parameter is not None
        ]
        if len(parameters) < len(before.parameters):
            return
        with reading():
            change = norm(_sample(parameters) - before.values) / norm(before.values).clamp_min(1e-30)
        number = watch.scalars.later(change)
        if number == 0.0:
            return
        self._told[optimizer] = self._told.get(optimizer, 0) + 1
        watch.tell(
            FrozenMoved(
                step=watch.window.steps,
                place=watch.places.here(),
                optimizer=watch.objects.optimizer(optimizer),
                names=tuple(watch.objects.name(parameter) for parameter in parameters[:_NAMES]),
                count=len(parameters),
                change=number,
            )
        )


def _sample(tensors: Sequence[Tensor]) -> Tensor:
    with reading():
        first = tensors[0].device
        return torch.cat([tensor.reshape(-1)[:_LOOKED_AT].to(first, torch.float32) for tensor in tensors])


class _Layers:
    """The frozen normalisation layers of one model, as they were when first looked at."""

    def __init__(self, layers: list[tuple[str, nn.Module]], step: int) -> None:
        self.names = [name for name, _ in layers]
        self.layers = [weakref.ref(layer) for _, layer in layers]
        self.since = step
        self.told = 0
        self.statistics = _sample(_statistics(self.alive()))
        self.own = _sample(_own(self.alive()))

    def alive(self) -> list[nn.Module]:
        return [layer for layer in (reference() for reference in self.layers) if layer is not None]


class FrozenStatistics:
    """Compares running statistics of normalisation layers whose own parameters are frozen and do not move."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[int, _Layers | None] = {}
        """By the identity of the model; None where nothing is to be watched."""

    def check(self) -> None:
        """An optimizer is about to step, in a window in which models are looked through."""
        if not may_measure():
            return
        for model in self._watch.objects.models():
            if id(model) not in self._known:
                self._known[id(model)] = self._first_look(model)
            elif (known := self._known[id(model)]) is not None:
                self._look_again(model, known)

    def _first_look(self, model: Model) -> _Layers | None:
        if not any(parameter.requires_grad for _, parameter in model.parameters()):
            return None
        module = model.module
        inside = module.named_modules() if module is not None else ()
        layers = [(name, layer) for name, layer in inside if _is_frozen(layer)][:_MOST_TENSORS]
        return _Layers(layers, self._watch.window.steps) if layers else None

    def _look_again(self, model: Model, known: _Layers) -> None:
        layers = known.alive()
        # A discriminator is frozen for a step and trains in the next; a momentum encoder is moved by hand.
        toggled = len(layers) < len(known.names) or not all(_is_frozen(layer) for layer in layers)
        if toggled or not torch.equal(_sample(_own(layers)), known.own):
            self._known[id(model)] = None
            return
        steps = self._watch.window.steps
        if steps < 4 or known.told >= _MOST_TOLD or not any(layer.training for layer in layers):
            return
        known.told += 1
        self._tell(model, known, layers)

    def _tell(self, model: Model, known: _Layers, layers: list[nn.Module]) -> None:
        watch = self._watch
        with reading():
            change = norm(_sample(_statistics(layers)) - known.statistics) / norm(known.statistics).clamp_min(1e-30)
        number = watch.scalars.later(change)
        if number == 0.0:
            return
        training = [name for name, layer in zip(known.names, layers, strict=True) if layer.training]
        watch.tell(
            FrozenMoved(
                step=watch.window.steps,
                place=model.place,
                what="statistics",
                model=model.label,
                names=tuple(training[:_NAMES]),
                count=len(training),
                change=number,
                since=known.since,
            )
        )


def _is_frozen(layer: nn.Module) -> bool:
    """A BatchNorm that keeps statistics, and whose own parameters are not to be trained."""
    if not isinstance(layer, NormBase) or not layer.track_running_stats or layer.weight is None:
        return False
    plain = is_plain(layer.weight) and is_plain(layer.running_mean) and is_plain(layer.running_var)
    return plain and not any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _statistics(layers: Sequence[nn.Module]) -> list[Tensor]:
    return [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var)]  # type: ignore[misc]


def _own(layers: Sequence[nn.Module]) -> list[Tensor]:
    return [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
