"""Notes, at chosen steps, a fingerprint of everything that passes through the training: weights, inputs, outputs of
modules, targets, losses, gradients and updates, in the order in which they come."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.tensors import reading, tensors_in
from unstuck.capture.observers.data import arguments_of
from unstuck.capture.observers.losses import NAMES
from unstuck.capture.places import Places
from unstuck.capture.trial.lab import Lab, is_data, is_model
from unstuck.findings.fingerprints import Fingerprint, Kind

MOST = 20_000
"""Fingerprints of one run."""
CYCLE = 1009
"""Neighbouring elements have different weights in the sum, so that elements in another order give another sum."""


class Fingerprints:
    """Takes them; the note `fingerprints` has them. Losses are noted at every step."""

    def __init__(self, lab: Lab, first: int, last: int) -> None:
        self._lab, self._first, self._last = lab, first, last
        self._places = Places(lab.stage)
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        """Objects whose ids are names, so that no other object gets these."""
        self._kinds: Counter[str] = Counter()
        self._calls: Counter[tuple[Kind, str]] = Counter()
        self._depth = self._step = 0
        self._is_inside = False
        self._notes: list[Fingerprint] = []
        lab.notes["fingerprints"] = self._notes
        lab.wrap(nn.Module, "__call__", self._calling)
        for name in NAMES:
            lab.wrap(F, name, partial(self._comparing, name))
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._around_backward)
        lab.before_steps(partial(self._parameters, Kind.GRADIENT))
        lab.after_steps(partial(self._parameters, Kind.UPDATED))

    @property
    def _looks(self) -> bool:
        if self._step != self._lab.steps:
            self._step = self._lab.steps
            self._calls.clear()
        return self._first <= self._step <= self._last

    def _note(self, kind: Kind, name: str, tensor: Tensor, module: nn.Module | None = None) -> None:
        if len(self._notes) >= MOST and kind is not Kind.LOSS:  # that two runs are equal is said of every loss
            return
        self._calls[kind, name] += 1
        count = self._calls[kind, name]
        size, mark = _described(tensor)
        path, line = self._written(module) if module is not None else ("", 0)
        called = name if count == 1 else f"{name} (call {count})"
        self._notes.append(Fingerprint(self._step, kind, called, tuple(tensor.shape), size, mark, path, line))

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._looks:
                return original(module, *args, **kwargs)
            with reading():
                self._begin(module, args, kwargs)
            self._depth += 1
            try:
                output = original(module, *args, **kwargs)
            finally:
                self._depth -= 1
            name = self._names.get(id(module))
            if name is not None:
                with reading():
                    for tensor in tensors_in(output):
                        self._note(Kind.OUTPUT, name, tensor, module)
            return output

        return call

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._depth or not is_model(module):
            return
        if id(module) not in self._names:
            self._name(module)
        for argument, tensor in arguments_of(module, (args, kwargs)):
            self._note(Kind.INPUT, f"{argument} of {self._names[id(module)]}", tensor, module)

    def _name(self, model: nn.Module) -> None:
        """Its modules and parameters from now on have names, the same in every version that has them."""
        kind = type(model).__name__
        self._kinds[kind] += 1
        root = kind if self._kinds[kind] == 1 else f"{kind} {self._kinds[kind]}"
        self._kept.append(model)
        for name, module in model.named_modules():
            self._names.setdefault(id(module), f"{root}.{name}" if name else root)
        for name, parameter in model.named_parameters():
            self._names.setdefault(id(parameter), f"{root}.{name}")
            self._note(Kind.WEIGHT, f"{root}.{name}", parameter)

    def _written(self, module: nn.Module) -> tuple[str, int]:
        """Where the user wrote what this module does; nothing for a module of torch's."""
        code = getattr(type(module).forward, "__code__", None)
        if code is None or not self._places.is_users(code):
            return "", 0
        place = self._places.of_file(inspect.getfile(type(module)), code.co_firstlineno, 0)
        return place.path, place.line

    def _comparing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any, **kwargs: Any) -> Any:
            if self._looks:
                with reading():
                    for value in (*args, *kwargs.values()):
                        if is_data(value):
                            self._note(Kind.TARGET, f"{name}()", value)
            return original(*args, **kwargs)

        return loss

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside:  # `Tensor.backward` calls `torch.autograd.backward`
                return original(*args, **kwargs)
            self._looks  # noqa: B018 - begins a new step
            with reading():
                for tensor in tensors_in(args[:1]):
                    self._note(Kind.LOSS, "loss", tensor)
            self._is_inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_inside = False

        return backward

    def _parameters(self, kind: Kind, optimizer: Optimizer) -> None:
        if not self._looks:
            return
        with reading():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    value = parameter.grad if kind is Kind.GRADIENT else parameter
                    name = self._names.get(id(parameter))
                    if name is not None and value is not None:
                        self._note(kind, name, value)


def _described(tensor: Tensor) -> tuple[float | None, float | None]:
    """Its size, and a sum that differs if any element does, or their order."""
    values = tensor.detach()
    if values.layout is not torch.strided or values.is_meta or values.is_complex() or not values.numel():
        return None, None
    flat = values.reshape(-1).double()
    weights = torch.arange(flat.numel(), device=flat.device).remainder_(CYCLE).double().cos_()
    size, mark = math.sqrt(float(flat.square().mean())), float(flat @ weights)
    return size if math.isfinite(size) else None, mark if math.isfinite(mark) else None
