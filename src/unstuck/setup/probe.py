"""Reads a model and its optimizer and, given a batch, tries one forward and backward that leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from unstuck.capture import Session, TorchMissing
from unstuck.events import Backward, Event, LossCall, ModelSeen, OptimizerSeen, Setup

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def probe(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any] | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
    batch: Any = None,
) -> Setup:
    """What `check` looks at; given `loss_fn` and `batch` it runs one forward, loss and backward.

    `batch` is `(inputs, target)`, where a tuple or list of inputs is given as `model(*inputs)` and a dict as
    `model(**inputs)`; or one dict, given as `model(**batch)` and, in place of a target, to `loss_fn`.
    Afterwards weights, buffers, gradients, modes and random generators are as they were. What the user's code
    raises passes on.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise TorchMissing("Looking at a live model needs torch, which is not installed here.") from None
    from unstuck.capture.objects import Objects, parameter_fact

    objects = Objects()
    known = objects.model(model)
    objects.learn_names(known)
    optimizers = [objects.optimizer_seen(item, 0, None) for item in _as_list(optimizer)]
    events: list[Event] = []
    missing: list[Any] = []
    if loss_fn is not None and batch is not None:
        missing = _try_out(model, loss_fn, batch, events)
    return Setup(
        models=tuple(event for event in events if isinstance(event, ModelSeen)) or (known.seen(0),),
        optimizers=tuple(optimizers) or tuple(event for event in events if isinstance(event, OptimizerSeen)),
        losses=tuple(event for event in events if isinstance(event, LossCall)),
        backwards=tuple(event for event in events if isinstance(event, Backward)),
        missing_gradients=tuple(parameter_fact(name, parameter) for name, parameter in missing),
    )


def _try_out(
    model: nn.Module, loss_fn: Callable[[Any, Any], Any], batch: Any, events: list[Event]
) -> list[tuple[str, nn.Parameter]]:
    """Run the batch once under watch; the trainable parameters that got no gradient."""
    import torch

    from unstuck.setup.restore import untouched

    session = Session(events.append)
    with untouched(model):
        for parameter in model.parameters():
            parameter.grad = None
        session.install()
        try:
            with torch.enable_grad():
                inputs, target = batch if not isinstance(batch, dict) else (batch, batch)
                loss = loss_fn(_call(model, inputs), target)
                if loss.requires_grad:
                    loss.backward()
                else:
                    events.append(Backward(requires_grad=False, leaf=False, failed=True))
        finally:
            session.remove()
        return [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.grad is None]


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _as_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    from torch.optim import Optimizer

    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
