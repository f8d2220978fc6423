"""The way in which modules are used: training mode while training, the batch on the first axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unstuck.findings.mixing import Mix
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


class AlignExamples(Intervention, frozen=True):
    """At one line, or at all lines of the program, let an operation combine each example with itself alone."""

    mix: Mix
    path: str = ""
    line: int = 0
    axis: int = 0
    """On which the examples lie, where a reshape is about to scatter them."""

    @property
    def words(self) -> str:
        at = f" at {self.path}:{self.line}" if self.path else ""
        return f"{ALIGNED[self.mix]}{at}"

    def apply(self, lab: Lab) -> None:
        from unstuck.capture.trial.axes.alignment import align

        align(lab, self.mix, self.path, self.line, self.axis)


ALIGNED = {
    Mix.COLUMN: "the shapes (N, 1) and (N,) made equal",
    Mix.COEFFICIENT: "one number for each example along the axis of the examples",
    Mix.PICK: "one number picked for each example",
    Mix.SOFTMAX: "the softmax along another axis than the batch",
    Mix.ROWS: "the axis of the examples moved to the front before the reshape",
    Mix.CODES: "the positional codes along the positions",
}
