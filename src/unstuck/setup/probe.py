"""Reads a model and its optimizer and, given a batch, tries one forward and backward that leaves no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
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
    `model(**inputs)`; or one dict or tensor, given as `model(**batch)` or `model(batch)` and, in place of a target,
    to `loss_fn`.
    Afterwards weights, buffers, gradients, modes and random generators are as they were. What the user's code
    raises passes on, with a note of who called it.
    """
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise TorchMissing(
            "Looking at a live model needs torch, which is not installed here: pip install torch"
        ) from None
    from unstuck.capture.objects import Objects, parameter_fact

    _must_be_module(model)
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

    models = [model, loss_fn] if isinstance(loss_fn, torch.nn.Module) else [model]
    session = Session(events.append)
    with untouched(*models):
        for parameter in (parameter for each in models for parameter in each.parameters()):
            parameter.grad = None
        session.install()
        try:
            with torch.enable_grad():
                inputs, target = _split(batch)
                with _saying_who_called():
                    loss = loss_fn(_call(model, inputs), target)
                _must_be_tensor(loss)
                if loss.requires_grad:
                    loss.backward()
                else:
                    events.append(Backward(requires_grad=False, leaf=False, failed=True))
        finally:
            session.remove()
        return [(n, p) for n, p in model.named_parameters() if p.requires_grad and p.grad is None]


def _split(batch: Any) -> tuple[Any, Any]:
    """Inputs and target; a batch that is one dict or one tensor is both."""
    from torch import Tensor

    if isinstance(batch, dict | Tensor):
        return batch, batch
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(f"batch must be (inputs, target), a dict or a tensor, and this is {_described(batch)}.")


@contextlib.contextmanager
def _saying_who_called() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(
            "unstuck.check called your model on the batch you gave; a tuple or list of inputs is given as "
            "model(*inputs), a dict as model(**inputs), and the loss as loss_fn(output, target)."
        )
        raise


def _must_be_module(model: Any) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, and this is {_described(model)}.")


def _must_be_tensor(loss: Any) -> None:
    from torch import Tensor

    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn must return a tensor to call backward() on, and it returned {_described(loss)}.")


def _described(thing: Any) -> str:
    size = f" of {len(thing)}" if isinstance(thing, tuple | list) else ""
    return f"a {type(thing).__name__}{size}"


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _as_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    from torch.optim import Optimizer

    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
