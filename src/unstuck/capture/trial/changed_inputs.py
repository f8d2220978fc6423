"""Other inputs for the model, while the targets stay what they were."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.trial.lab import Arguments, Lab, is_data, map_tensors

TARGETS = re.compile(r"label|target|^y$|^y_|_y$|positions$|ground_?truth|^gt", re.I)
"""Arguments of a forward that are what is to be predicted."""
STRUCTURE = re.compile(
    r"mask|length|lens|position_ids|token_type|edge_index|ptr$|^t$|time_?step|sigma|noise|cache", re.I
)
"""Arguments that say how to read the others."""
PERMUTATION_SEED = 20_261


class ChangedInputs:
    """Zeros, noise, another example's input, or the same brought to mean 0 and deviation 1."""

    def __init__(self, lab: Lab, how: str) -> None:
        self._how = how
        self._generator = torch.Generator().manual_seed(PERMUTATION_SEED)
        self._before: dict[tuple[int, tuple[int, ...]], Tensor] = {}
        self._scales: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        self._lab = lab
        lab.notes["inputs"] = {"how": how, "changed": 0}
        lab.change_calls(self._change)

    def _change(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        names = names_of_arguments(module)
        named = [(names[i] if i < len(names) else "", value) for i, value in enumerate(args)] + list(kwargs.items())
        change = self._shuffling(module, named) if self._how == "shuffled" else self._filling(module)
        changed = [self._argument(name, value, change) for name, value in named]
        return tuple(changed[: len(args)]), dict(zip(kwargs, changed[len(args) :], strict=True))

    def _argument(self, name: str, value: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
        if isinstance(value, dict) or hasattr(value, "keys"):
            try:
                return {key: self._argument(str(key), value[key], change) for key in list(value.keys())}
            except Exception:
                return value
        if TARGETS.search(name):
            return value
        return map_tensors(value, lambda tensor: change(name, tensor) if is_data(tensor) else tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        self._lab.notes["inputs"]["changed"] += 1
        return tensor

    def _filling(self, module: nn.Module) -> Callable[[str, Tensor], Tensor]:
        def fill(name: str, tensor: Tensor) -> Tensor:
            whole_numbers = not tensor.is_floating_point()
            if STRUCTURE.search(name) or tensor.dim() == 0 or tensor.dtype == torch.bool or tensor.is_sparse:
                return tensor
            if self._how == "standardised":
                return tensor if whole_numbers else self._count(self._standardised(module, name, tensor))
            if whole_numbers and tensor.dim() == 1:
                return tensor  # lengths, time steps, classes: a count of examples that must stay what it is
            if self._how == "zeros" or whole_numbers:
                return self._count(torch.zeros_like(tensor))
            noise = torch.randn(tensor.shape, generator=self._generator).to(tensor.device, tensor.dtype)
            return self._count(noise * tensor.std() + tensor.mean())

        return fill

    def _shuffling(self, module: nn.Module, named: list[tuple[str, Any]]) -> Callable[[str, Tensor], Tensor]:
        """Exchange whole examples: each keeps its mask and its length, and loses its target."""
        sizes: list[int] = []
        for name, value in named:
            if not TARGETS.search(name):
                map_tensors(value, lambda tensor: sizes.append(len(tensor)) if is_data(tensor) and tensor.dim() else 0)
        size = sizes[0] if sizes else 0
        order = torch.randperm(size, generator=self._generator) if size else None
        shifted = (torch.arange(size) + 1) % size if size else None
        if order is not None and size > 1 and bool((order == torch.arange(size)).any()):
            order = order[shifted]
        other_axis = _sequence_first(module)

        def shuffle(name: str, tensor: Tensor) -> Tensor:
            if order is None or tensor.dim() == 0 or len(tensor) != size:
                return tensor
            if size == 1:
                return self._count(self._one_before(module, tensor))
            mixed = tensor[order.to(tensor.device)]
            if other_axis and mixed.dim() > 1:
                across = torch.randperm(mixed.shape[1], generator=self._generator).to(tensor.device)
                mixed = mixed[:, across]
            return self._count(mixed)

        return shuffle

    def _one_before(self, module: nn.Module, tensor: Tensor) -> Tensor:
        key = (id(module), tuple(tensor.shape))
        before = self._before.get(key)
        self._before[key] = tensor.detach().clone()
        return tensor if before is None else before

    def _standardised(self, module: nn.Module, name: str, tensor: Tensor) -> Tensor:
        key = (id(module), name)
        if key not in self._scales:
            # Images: by channel. Tables: by column. Anything else with a last axis of features: by feature.
            features = 1 if tensor.dim() in (2, 4, 5) else tensor.dim() - 1
            others = [axis for axis in range(tensor.dim()) if axis != features] or [0]
            mean, spread = tensor.mean(others, keepdim=True), tensor.std(others, keepdim=True)
            self._scales[key] = (mean, torch.where(spread > 0, spread, torch.ones_like(spread)))
        mean, spread = self._scales[key]
        return (tensor - mean) / spread


def names_of_arguments(module: nn.Module) -> list[str]:
    """What its `forward` calls its arguments."""
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def _sequence_first(module: nn.Module) -> bool:
    """May the batch lie on the second axis?"""
    return any(getattr(part, "batch_first", True) is False for part in module.modules())
