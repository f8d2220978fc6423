"""What a user passes in: a model, a batch, a loss and optimizers; whether they fit, and how they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer


def split(batch: Any) -> tuple[Any, Any]:
    """Inputs and target; a batch that is one dict or one tensor is both."""
    if isinstance(batch, dict | Tensor):
        return batch, batch
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise TypeError(f"batch must be (inputs, target), a dict or a tensor, and this is {described(batch)}.")


def call(model: nn.Module, inputs: Any) -> Any:
    """A dict is given by names, a tuple or list by position."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def described(thing: Any) -> str:
    """What it is, for a sentence."""
    size = f" of {len(thing)}" if isinstance(thing, tuple | list) else ""
    return f"a {type(thing).__name__}{size}"


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in nested dicts, tuples and lists; also in the outputs of libraries, which are dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure, each tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: with_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(with_tensors(item, change) for item in value)
    return value


def must_be_module(model: Any) -> None:
    """Raise if it is not a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, and this is {described(model)}.")


def must_be_tensor(loss: Any) -> None:
    """Raise if there is nothing to call backward() on."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn must return a tensor to call backward() on, and it returned {described(loss)}.")


def must_have_shapes(model: nn.Module) -> None:
    """Raise if a parameter has none yet."""
    lazy = [name for name, parameter in model.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"{lazy[0]} has no shape yet, and trying a batch would fix it for good; call the model on a batch first, "
            "then check it."
        )


def as_list(optimizer: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
    """None, one or several, as a list."""
    if optimizer is None:
        return []
    several = (
        [optimizer] if isinstance(optimizer, Optimizer) or not isinstance(optimizer, Iterable) else list(optimizer)
    )
    for item in several:
        if not isinstance(item, Optimizer):
            raise TypeError(
                f"optimizer must be a torch.optim.Optimizer or several of them, and this is {described(optimizer)}; "
                "give a batch by name: batch=(inputs, targets)."
            )
    return several


def must_be_loss(loss_fn: Any) -> None:
    """Raise if it is not a function of output and target."""
    if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
        raise TypeError(f"loss_fn is the class {loss_fn.__name__}; make one of it: {loss_fn.__name__}().")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be a function of (output, target), and this is {described(loss_fn)}.")


def as_watched(loss_fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function such as `F.cross_entropy` under the name by which it is watched now."""
    name = getattr(loss_fn, "__name__", "")
    if getattr(loss_fn, "__module__", "") == functional.__name__ and hasattr(functional, name):
        watched: Callable[[Any, Any], Any] = getattr(functional, name)
        return watched
    return loss_fn
