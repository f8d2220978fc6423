"""Which modules ran in a pass, also those outside the model, and which of them got no gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.objects import parameter_fact
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.hooks import before_all_modules
from unstuck.events import ParameterFact, Place


class ModulesRun:
    """Notes every module that runs while this watches."""

    def __init__(self, models: Iterable[nn.Module], optimised: Iterable[Tensor]) -> None:
        self._known = {id(parameter) for model in models for parameter in model.parameters()}
        self._optimised = {id(parameter) for parameter in optimised}
        self._gradients: dict[int, tuple[nn.Parameter, Tensor | None]] = {}
        self._strays: dict[int, str] = {}
        self._places = Places()
        self._inside = False
        self._modules: set[int] = set()
        self.stray_place: Place | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Afterwards the gradients of modules that are not part of the models are what they were."""
        try:
            with before_all_modules(self._running):
                yield
        finally:
            for parameter, gradient in self._gradients.values():
                parameter.grad = gradient

    @contextlib.contextmanager
    def inside_the_model(self) -> Iterator[None]:
        """What runs now is called by the model itself."""
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _running(self, module: nn.Module, args: Any) -> None:
        self._modules.add(id(module))
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in self._known or id(parameter) in self._gradients:
                continue
            self._gradients[id(parameter)] = (parameter, parameter.grad)
            parameter.grad = None
            if self._inside and id(parameter) not in self._optimised:
                self._strays[id(parameter)] = f"{type(module).__name__}.{name}"
                self.stray_place = self.stray_place or self._places.here()

    def strays(self) -> tuple[ParameterFact, ...]:
        """Parameters that got a gradient inside the model and are neither part of it nor held by an optimizer."""
        found = (parameter for parameter, _ in self._gradients.values() if parameter.grad is not None)
        return tuple(parameter_fact(self._strays[id(p)], p) for p in found if id(p) in self._strays)

    def cut_off(self, model: nn.Module) -> tuple[str, ...]:
        """Layers that ran and got no gradient at all, though they have parameters to train."""
        found = []
        for name, module in model.named_modules():
            own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
            if name and own and id(module) in self._modules and all(parameter.grad is None for parameter in own):
                found.append(name)
        return tuple(found)


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """The norm of each gradient that is there, by the name of its parameter."""
    dense = {n: p.grad for n, p in model.named_parameters() if p.grad is not None and not p.grad.is_sparse}
    with torch.no_grad():
        norms = [gradient.float().norm() for gradient in dense.values()]
        return dict(zip(dense, torch.stack(norms).tolist() if norms else (), strict=True))
