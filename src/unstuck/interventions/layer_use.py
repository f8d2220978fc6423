"""The way in which modules are used: training mode while training, the batch on the first axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import nn

    from unstuck.capture.trial.lab import Arguments, Lab


class TrainingMode(Intervention, frozen=True):
    """Put the model into training mode whenever it is called with gradients, unless it is frozen as a whole."""

    WORDS = "the model in training mode whenever it is called with gradients"

    def apply(self, lab: Lab) -> None:
        import torch

        def train(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            learns = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())
            if learns and not module.training:
                module.train()
            return args, kwargs

        lab.change_calls(train)


class BatchFirst(Intervention, frozen=True):
    """Let recurrent layers and attention take the first axis as the batch, as if built with `batch_first=True`."""

    WORDS = "batch_first=True in recurrent and attention layers"

    def apply(self, lab: Lab) -> None:
        changed: set[int] = set()

        def switch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            if id(module) not in changed:
                changed.add(id(module))
                for part in module.modules():
                    if getattr(part, "batch_first", None) is False:
                        setattr(part, "batch_first", True)  # noqa: B010 - modules type their attributes as modules
            return args, kwargs

        lab.change_calls(switch)
