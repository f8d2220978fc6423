"""Hooks, modes and replaced attributes of torch, for `check`, `surface` and the trials. Each can be removed again.

A watched run does not use these: its observers are woven into torch's functions (`patches.py`), so that the program
cannot notice them. Here the calls are our own, or the process is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer, optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Undo = Callable[[], None]


class FunctionCalls(TorchFunctionMode):
    """While it is entered, every function of torch that is called goes through `called`."""

    def called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, or do something else, and return what the program gets."""
        return function(*args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this."""
        return self.called(func, args, kwargs or {})


class OperationCalls(TorchDispatchMode):
    """While it is entered, every operation that torch carries out goes through `called`, below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        """As torch has it."""
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def called(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry it out, or do something else, and return what the program gets."""
        return operation(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch calls this."""
        return self.called(func, tuple(args), kwargs or {})


def enter(mode: FunctionCalls | OperationCalls) -> Undo:
    """Enter a mode in this thread, until that is undone."""
    mode.__enter__()  # type: ignore[no-untyped-call]
    return lambda: mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def before_all_modules(action: Callable[[nn.Module, Any], None]) -> Iterator[None]:
    """Call `action(module, args)` before every module that is called in this block."""
    handle = nn.modules.module.register_module_forward_pre_hook(action)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def after_modules_of(model: nn.Module, action: Callable[[nn.Module, Any, Any, Any], None]) -> Iterator[None]:
    """Call `action(module, args, kwargs, output)` after every module of this model that is called in this block."""
    handles = [module.register_forward_hook(action, with_kwargs=True) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def after_nodes(root: Any, action: Callable[[Any, Any, Any], None]) -> None:
    """Call `action(node, passed_on, given)` after every node of this graph when its backward runs. The hooks go with
    the graph."""

    def hook(node: Any) -> Callable[[Any, Any], None]:
        return lambda passed_on, given: action(node, passed_on, given)

    stack, known = [root], set()
    while stack:
        node = stack.pop()
        if node is not None and node not in known:
            known.add(node)
            node.register_hook(hook(node))
            stack += [child for child, _ in node.next_functions]


def when_gradient_arrives(tensor: Tensor, action: Callable[[Tensor], None]) -> None:
    """Call `action(gradient)` when a backward reaches this result of a forward. The hook goes with the graph."""
    tensor.register_hook(action)  # type: ignore[no-untyped-call]


def before_steps(action: Callable[[Optimizer], None]) -> Undo:
    """Call `action(optimizer)` before each step of any optimizer."""
    handle = optimizers.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: action(optimizer))
    return handle.remove


def after_steps(action: Callable[[Optimizer], None]) -> Undo:
    """Call `action(optimizer)` after each step of any optimizer."""
    handle = optimizers.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: action(optimizer))
    return handle.remove


def replace(owner: Any, name: str, value: Any) -> Undo:
    """Set `owner.name`. What was inherited is inherited again when that is undone."""
    missing = object()
    before = owner.__dict__.get(name, missing)
    setattr(owner, name, value)
    return lambda: delattr(owner, name) if before is missing else setattr(owner, name, before)
