"""Updates known to work: the gradient of what backward was called on since the last step, clipped, and Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.trial.lab import Arguments, Lab
from unstuck.capture.trial.stand_ins.adam import Adam


class StandInUpdate:
    """Also updates what no optimizer holds, and needs no clearing of gradients. Each step of the script's own optimizer
    is undone."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._adam = Adam()
        self._parameters: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}
        self._modules: set[int] = set()
        lab.notes["update"] = {"swapped": 0, "why": ""}
        lab.change_calls(self._called)
        self._is_computing = False
        for owner in (torch.Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._computing)
        lab.before_steps(self._remember)
        lab.after_steps(self._step)

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if id(module) not in self._modules and torch.is_grad_enabled():
            self._modules.add(id(module))
            self._parameters |= {id(p): p for p in module.parameters() if p.requires_grad}
        return args, kwargs

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_computing:  # the method calls the function
                return original(*args, **kwargs)
            own = {key: parameter.grad for key, parameter in self._parameters.items()}
            for parameter in self._parameters.values():
                parameter.grad = None
            self._is_computing = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_computing = False
                for key, parameter in self._parameters.items():
                    self._add(key, parameter, own[key])

        return backward

    def _add(self, key: int, parameter: Tensor, own: Tensor | None) -> None:
        """Note what this backward has added, and leave what the script expects."""
        new = parameter.grad
        if new is not None:
            dense = new.detach().to_dense()
            self._gradients[key] = self._gradients[key] + dense if key in self._gradients else dense.clone()
        parameter.grad = new if own is None else own if new is None else own.add_(new)

    def _remember(self, optimizer: Optimizer) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            self._parameters.setdefault(id(parameter), parameter)
            self._before[id(parameter)] = parameter.detach().clone()
            if not self._gradients and parameter.grad is not None and parameter.requires_grad:
                own = parameter.grad.detach().to_dense().clone()  # made by hand, without backward()
                self._gradients.setdefault(id(parameter), own)

    @torch.no_grad()
    def _step(self, optimizer: Optimizer) -> None:
        before, self._before = self._before, {}
        for key, value in before.items():
            self._parameters[key].copy_(value)
        gradients, self._gradients = self._gradients, {}
        steps = [(self._parameters[key], self._parameters[key].detach(), g) for key, g in gradients.items()]
        self._adam.step(steps)
        self._lab.notes["update"]["swapped"] += bool(steps)
