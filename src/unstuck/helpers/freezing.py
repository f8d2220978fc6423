"""Freezing all of it: gradients, optimizer groups and the statistics of norm layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unstuck.helpers.layers import named


def freeze(module: nn.Module, optimizer: Optimizer | None = None) -> Frozen:
    """Stop a module from changing: no gradients, no updates, no decay, and BatchNorm keeps its statistics.

    `undo()` of what is returned makes trainable again what was trainable before.
    """
    return Frozen(module, optimizer)


class Frozen:
    """A module that does not change until `undo()`."""

    def __init__(self, module: nn.Module, optimizer: Optimizer | None, spare: Iterable[Tensor] = ()) -> None:
        self.module = module
        self._own = set(module.parameters()) - set(spare)
        self.parameters = [p for p in module.parameters() if p.requires_grad and p in self._own]
        self._optimizer = optimizer
        self._taken: list[tuple[dict[str, Any], list[Tensor]]] = []
        for parameter in self.parameters:
            parameter.requires_grad_(False)
            parameter.grad = None
        self._handles: list[RemovableHandle] = [
            norm.register_forward_pre_hook(_keep_statistics)
            for norm in module.modules()
            if getattr(norm, "track_running_stats", False)
        ]
        if optimizer is not None:
            self._take_out(optimizer)

    def _take_out(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            taken = [parameter for parameter in group["params"] if parameter in self._own]
            if taken:
                group["params"] = [parameter for parameter in group["params"] if parameter not in self._own]
                self._taken.append((group, taken))
        for parameter in self._own:
            optimizer.state.pop(parameter, None)

    def undo(self) -> None:
        """Let it train again; a second call does nothing."""
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        for handle in self._handles:
            handle.remove()
        for group, taken in self._taken:
            group["params"] = [*group["params"], *taken]
        for norm in self.module.modules():
            if getattr(norm, "track_running_stats", False):
                norm.train(self.module.training)
        self.parameters, self._handles, self._taken = [], [], []


def _keep_statistics(norm: nn.Module, inputs: Any) -> None:
    # model.train() may come after the freeze, and would let the statistics drift.
    norm.training = False


class GradualUnfreezing:
    """Fine-tuning from the head down: everything but the last layer is frozen, and `thaw()` frees the next one.

    unfreezing = GradualUnfreezing(model, optimizer)
    for epoch in range(epochs):
        train(...)
        unfreezing.thaw()
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | None = None, *, layers: Sequence[nn.Module] | None = None
    ) -> None:
        row = named(layers, model)
        if len(row) < 2:
            raise ValueError(
                "GradualUnfreezing() needs at least two layers with parameters; name them with layers=[...]."
            )
        head = [*row[-1][1].parameters()]  # a weight that the head shares stays with the head
        self._frozen = [(name, Frozen(layer, optimizer, spare=head)) for name, layer in row[:-1]]

    @property
    def frozen(self) -> list[str]:
        """The layers that are still frozen, from input to output."""
        return [name for name, _ in self._frozen]

    def thaw(self, layers: int = 1) -> list[str]:
        """Free the last of the frozen layers, or several; their names are returned."""
        freed = []
        for _ in range(min(layers, len(self._frozen))):
            name, frozen = self._frozen.pop()
            frozen.undo()
            freed.append(name)
        return freed
