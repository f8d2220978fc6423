"""Reads numbers out of tensors and changes nothing: no graph, no random draw, no wait for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unstuck.events import TensorFact

_PLAIN: set[type] = (
    {Tensor, torch.nn.Parameter, torch.nn.Buffer}
    if hasattr(torch.nn, "Buffer")
    else {
        Tensor,
        torch.nn.Parameter,
    }
)
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_HALVES)
MOST_TENSORS = 8


def is_plain(value: object) -> bool:
    """A dense floating-point tensor with data: not sparse, complex, quantized, meta, nor a subclass."""
    return (
        type(value) in _PLAIN
        and isinstance(value, Tensor)
        and value.dtype in _FLOATS
        and value.layout is torch.strided
        and not value.is_meta
    )


def may_measure() -> bool:
    """False where our operations would be seen: under tracing, dispatch modes and function transforms."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and not (_on_cuda() and torch.cuda.is_current_stream_capturing())
    )


def _on_cuda() -> bool:
    return torch.cuda._initialized


class reading:
    """No graph is built, and no function mode of the user's sees what we compute."""

    # Entered many times a step: `torch.no_grad` under `contextlib.contextmanager` takes ten times as long.
    __slots__ = ("_grad", "_modes")

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._modes = torch._C.DisableTorchFunction()
        self._modes.__enter__()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *exception: object) -> None:
        torch._C._set_grad_enabled(self._grad)
        self._modes.__exit__(None, None, None)


def norm(tensor: Tensor) -> Tensor:
    """The L2 norm as a scalar on the tensor's device; NaN or infinite if an element is."""
    with reading():
        wide: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float32 if tensor.dtype in _HALVES else None)
        return wide


def norms(tensors: Sequence[Tensor]) -> Tensor | None:
    """The L2 norm of every tensor as one float32 vector on the first one's device."""
    if not tensors:
        return None
    with reading():
        halves = any(tensor.dtype in _HALVES for tensor in tensors)
        found = (
            torch._foreach_norm(list(tensors), 2, dtype=torch.float32)
            if halves
            else torch._foreach_norm(list(tensors), 2)
        )
        first = tensors[0].device
        same_kind = all(value.device == first and value.dtype == found[0].dtype for value in found)
        return torch.stack(found if same_kind else [value.to(first, torch.float32) for value in found])


def is_finite(tensor: Tensor) -> bool:
    """Is every element finite? Waits for the device."""
    with reading():
        return bool(torch.isfinite(tensor).all())


def flaw(tensor: Tensor) -> str:
    """`nan` if an element is, else `inf`."""
    with reading():
        return "nan" if bool(torch.isnan(tensor).any()) else "inf"


def finite_range(tensor: Tensor) -> tuple[float, float] | None:
    """Smallest and largest finite element."""
    with reading():
        finite = tensor[torch.isfinite(tensor)]
        if finite.numel() == 0:
            return None
        low, high = torch.aminmax(finite)
        return float(low), float(high)


def tensors_in(value: Any, depth: int = 2) -> list[Tensor]:
    """The plain tensors in what a module takes or returns: itself, or in (nested) tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value] if is_plain(value) else []
    if depth == 0 or not isinstance(value, tuple | list | dict):
        return []
    items = value.values() if isinstance(value, dict) else value
    found: list[Tensor] = []
    for item in items:
        found += tensors_in(item, depth - 1)
        if len(found) >= MOST_TENSORS:
            break
    return found[:MOST_TENSORS]


def fact(tensor: Tensor, *, made_by: str = "", ranged: bool = False, class_axis: int | None = None) -> TensorFact:
    """What a rule may want to know of a tensor; its range only when `ranged`."""
    low = high = None
    sums_to_one = False
    if ranged and is_plain(tensor) and tensor.numel() > 0 and may_measure():
        with reading():
            low, high = (float(end) for end in torch.aminmax(tensor))
            if class_axis is not None and low >= 0 and high <= 1.001:
                totals = tensor.float().sum(class_axis)
                sums_to_one = bool((totals - 1).abs().max() < 1e-2)
    return TensorFact(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        low=low,
        high=high,
        requires_grad=tensor.requires_grad,
        made_by=made_by,
        sums_to_one=sums_to_one,
    )
