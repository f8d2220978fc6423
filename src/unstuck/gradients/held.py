"""The parameters a manager answers for: those its optimizers hold, by name, layer and group."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from unstuck.gradients.clip import Places
from unstuck.gradients.errors import MisuseError


class Held:
    """The parameters of some optimizers. Groups that are added or emptied later are noticed."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._optimizers = optimizers
        self._sizes: list[int] = []
        self._parameters: list[Tensor] = []
        self._check()

    @property
    def parameters(self) -> list[Tensor]:
        """Every parameter once, in the order of the optimizers."""
        sizes = [len(group["params"]) for optimizer in self._optimizers for group in optimizer.param_groups]
        if sizes != self._sizes:
            self._sizes = sizes
            self._read()
        return self._parameters

    @property
    def names(self) -> list[str]:
        """The names of the parameters, in the same order."""
        return [self._names[parameter] for parameter in self.parameters]

    def names_of(self, parameters: Sequence[Tensor]) -> list[str]:
        """The names of some of them."""
        return [self._names[parameter] for parameter in parameters]

    def places(self, parameters: Sequence[Tensor]) -> Places:
        """The layer and the group of some of them; a layer is the module that owns the parameter."""
        layers: dict[str, int] = {}
        owners = [self._names[parameter].rpartition(".")[0] for parameter in parameters]
        return Places(
            [layers.setdefault(owner, len(layers)) for owner in owners], [self._groups[p] for p in parameters]
        )

    def clear(self, spared: Callable[[], list[Tensor]]) -> None:
        """Drop all gradients, also those of parameters that no optimizer holds, unless they are others' business."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        if self._left_out:
            for parameter in set(self._left_out) - set(spared()):
                parameter.grad = None

    def _read(self) -> None:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._groups = {parameter: index for index, group in enumerate(groups) for parameter in group["params"]}
        self._parameters = [*self._groups]
        wrapper = "module." if isinstance(self._model, nn.parallel.DistributedDataParallel) else ""
        known: dict[Tensor, str] = {
            parameter: name.removeprefix(wrapper) for name, parameter in self._model.named_parameters()
        }
        self._names = {p: known.get(p, f"parameter {index}") for index, p in enumerate(self._parameters)}
        self._left_out = [parameter for parameter in known if parameter not in self._groups]

    def _check(self) -> None:
        names: dict[Tensor, str] = {parameter: name for name, parameter in self._model.named_parameters()}
        if not any(parameter in names for parameter in self.parameters):
            raise MisuseError("The optimizer holds no parameter of this model: build it from model.parameters().")
        missing = [names[parameter] for parameter in self._left_out if parameter.requires_grad]
        if missing:
            shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            warnings.warn(
                f"{len(missing)} trainable parameters are in no optimizer and will not learn ({shown}): "
                "give them to the optimizer, or freeze them.",
                UserWarning,
                stacklevel=4,
            )


def check_optimizers(given: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    """The optimizers as a list, without those a manager cannot step."""
    optimizers = [given] if isinstance(given, Optimizer) else [*given]
    if not optimizers:
        raise ValueError("GradientManager needs at least one optimizer.")
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise MisuseError(
                f"{type(optimizer).__name__} calls the loss itself, several times a step: "
                "use its step(closure) without a GradientManager."
            )
    return optimizers


def check_schedulers(
    given: LRScheduler | Sequence[LRScheduler] | None, optimizers: Sequence[Optimizer]
) -> list[LRScheduler]:
    """The schedulers as a list, without those that cannot be stepped once per optimizer step."""
    if given is None:
        return []
    schedulers = [*given] if isinstance(given, Sequence) else [given]
    for scheduler in schedulers:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise MisuseError("ReduceLROnPlateau waits for a validation loss: step it yourself after each validation.")
        if scheduler.optimizer not in optimizers:
            raise MisuseError(f"{type(scheduler).__name__} belongs to an optimizer that this manager does not have.")
    return schedulers
