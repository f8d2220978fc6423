"""Gradients that are NaN or infinite: naming where they came in, and going back to weights that were fine."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from unstuck.gradients.errors import NonFiniteGradientError

Policy: TypeAlias = Literal["raise", "skip", "rewind", "ignore"]
POLICIES = ("raise", "skip", "rewind", "ignore")
TOO_OFTEN = 3


def describe(model: nn.Module, names: Sequence[str], norms: Tensor, losses: Sequence[Tensor]) -> str:
    """One sentence about the gradients that are not finite; the one nearest to the loss is named first."""
    values = norms.tolist()
    guilty = [(name, value) for name, value in zip(names, values, strict=True) if not math.isfinite(value)]
    if not guilty:
        return "The norm of the gradient overflows although every single gradient is finite."
    bad_loss = next((float(loss) for loss in losses if not math.isfinite(float(loss))), None)
    name, value = guilty[-1]  # backward goes from the last to the first: NaN spreads that way
    share = f"{len(guilty)} of {len(values)} gradients are not finite"
    if bad_loss is not None:
        return f"The loss itself was {bad_loss}, so {share}; look at the forward pass and the loss."
    return f"The gradient of {name}{_module(model, name)} has the norm {value}, nearest to a finite loss; {share}."


def _module(model: nn.Module, name: str) -> str:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    try:
        return f" ({type(model.get_submodule(name.rpartition('.')[0])).__name__})"
    except AttributeError:
        return ""


class Snapshot:
    """Weights, buffers, optimizers and schedulers as they were after some step."""

    def __init__(self, model: nn.Module, parts: Sequence[Any], every: int) -> None:
        self._model = model
        self._parts = parts
        self._every = every
        self._used = 0
        self.step: int | None = None

    def keep(self, step: int) -> None:
        """Take a snapshot before the first step, and whenever it is time for a new one."""
        if self.step is not None and step < self.step + self._every:
            return
        self._tensors = {name: value.detach().clone() for name, value in _tensors(self._model).items()}
        self._states = [copy.deepcopy(part.state_dict()) for part in self._parts]
        self.step, self._used = step, 0

    def restore(self) -> int:
        """Put everything back, in place; the step that it was is returned."""
        assert self.step is not None
        self._used += 1
        if self._used > TOO_OFTEN:
            raise NonFiniteGradientError(
                f"Training was put back to step {self.step} {TOO_OFTEN} times and its gradients became "
                'NaN or infinite again each time; use on_nonfinite="raise" to see where.'
            )
        with torch.no_grad():
            for name, value in _tensors(self._model).items():
                value.copy_(self._tensors[name])
        for part, state in zip(self._parts, self._states, strict=True):
            part.load_state_dict(copy.deepcopy(state))
        return self.step


def _tensors(model: nn.Module) -> Mapping[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
