"""Reads numbers out of tensors and changes nothing: no graph, no random draw, no wait for a device."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.torch_hooks import internals
from unstuck.events import ClassFact, TensorFact

_PLAIN: set[type] = (
    {Tensor, torch.nn.Parameter, torch.nn.Buffer}
    if hasattr(torch.nn, "Buffer")
    else {
        Tensor,
        torch.nn.Parameter,
    }
)
# Asked at every step, when training has pushed out of the cache what the names on the way to a function would need.
_dispatch_modes = internals.dispatch_modes
_tracing_state = internals.tracing_state
_transforms = internals.transforms
_can_hide = internals.can_hide
_has_cuda = internals.has_cuda
HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *HALVES)
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
MOST_TENSORS = 8
_LARGEST_PART = 2**16
"""Elements of a large tensor that means and spreads rest on; more if that would be too few examples."""
_FEWEST_ROWS = 16
_MOST_CLASSES = 32
_MOST_COLUMNS = 64
_FEW_LABELS = 1024


def is_plain(value: object) -> bool:
    """A dense floating-point tensor with data: not sparse, complex, quantized, nested, meta, nor a subclass."""
    return (
        type(value) in _PLAIN
        and isinstance(value, Tensor)
        and value.dtype in _FLOATS
        and value.layout is torch.strided
        and not value.is_meta
        and not value.is_nested
    )


def may_measure() -> bool:
    """False where our operations would be seen: under tracing, dispatch modes and function transforms."""
    return (
        _dispatch_modes() == 0
        and _tracing_state() is None
        and _transforms() is None
        and _can_hide
        and not (_has_cuda() and torch.cuda.is_current_stream_capturing())
    )


class reading:
    """No graph is built, and no function mode of the user's sees what we compute."""

    # Entered many times a step: `torch.no_grad` under `contextlib.contextmanager` takes ten times as long.
    __slots__ = ("_grad", "_modes")

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._modes = internals.without_function_modes()
        self._modes.__enter__()
        internals.set_grad_enabled(False)

    def __exit__(self, *exception: object) -> None:
        internals.set_grad_enabled(self._grad)
        self._modes.__exit__(None, None, None)


def norm(tensor: Tensor) -> Tensor:
    """The L2 norm as a scalar on the tensor's device; NaN or infinite if an element is."""
    with reading():
        wide: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float32 if tensor.dtype in HALVES else None)
        return wide


def norms(tensors: Sequence[Tensor]) -> Tensor | None:
    """The L2 norm of every tensor as one float32 vector on the first one's device."""
    if not tensors:
        return None
    with reading():
        kinds = {tensor.dtype for tensor in tensors}
        wide = torch.float64 if torch.float64 in kinds else torch.float32  # a double may not be narrowed
        found = (
            internals.foreach_norm(list(tensors), 2, dtype=wide)
            if not kinds.isdisjoint(HALVES)
            else internals.foreach_norm(list(tensors), 2)
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


def is_whole(value: object) -> bool:
    """A dense tensor of whole numbers with data."""
    return type(value) is Tensor and value.dtype in _WHOLE and value.layout is torch.strided and not value.is_meta


def fact(
    tensor: Tensor,
    *,
    made_by: str = "",
    axis: int | None = None,
    ranged: bool = False,
    class_axis: int | None = None,
    ignored: int | None = None,
) -> TensorFact:
    """What a rule may want to know of a tensor; numbers about its values only when `ranged`.

    `class_axis` is where scores or probabilities have their classes, `ignored` a label that does not count.
    """
    numbers: dict[str, Any] = {}
    if ranged and tensor.numel() > 0 and may_measure():
        with reading():
            if is_plain(tensor):
                numbers = _about_values(tensor.detach(), class_axis)
            elif is_whole(tensor):
                numbers = _about_labels(tensor, ignored)
    return TensorFact(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        requires_grad=tensor.requires_grad,
        made_by=made_by,
        axis=axis,
        **numbers,
    )


def _about_values(tensor: Tensor, class_axis: int | None) -> dict[str, Any]:
    low, high = (float(end) for end in torch.aminmax(tensor))
    numbers: dict[str, Any] = {"low": low, "high": high}
    rows = _some_rows(tensor)
    numbers["mean"], numbers["spread"], between = _moments(rows)
    has_examples = tensor.dim() > 0 and len(rows) > 1 and class_axis != 0
    if has_examples:
        numbers["between"] = between
    if class_axis is not None:
        if low >= 0 and high <= 1.001:
            totals = tensor.float().sum(class_axis)
            numbers["sums_to_one"] = bool((totals - 1).abs().max() < 1e-2)
        if has_examples:
            numbers["classes"] = counted(rows.argmax(class_axis))
    return numbers


def _some_rows(tensor: Tensor) -> Tensor:
    """The tensor, or rows spread over it if it is large, in at least single precision."""
    rows = len(tensor) if tensor.dim() > 0 else 1
    wanted = max(_FEWEST_ROWS, _LARGEST_PART * rows // tensor.numel())
    part = tensor[:: -(-rows // wanted)] if rows > wanted else tensor
    return part.float() if part.dtype in HALVES else part


def _moments(rows: Tensor) -> tuple[float, float, float]:
    """Mean and standard deviation of all values, and that from row to row, averaged over the columns."""
    table = rows.reshape(len(rows) if rows.dim() > 0 else 1, -1)
    table = table[:, :: -(-table.shape[1] // _MOST_COLUMNS)]
    # Column by column first: for a small table a handful of numbers in python is faster than more operations.
    variances, means = (found.tolist() for found in torch.var_mean(table, 0, correction=0))
    count = len(means)
    mean = sum(means) / count
    between = sum(variance**0.5 for variance in variances) / count
    spread = (sum(variances) / count + sum((part - mean) ** 2 for part in means) / count) ** 0.5
    return mean, spread, between


def _about_labels(tensor: Tensor, ignored: int | None) -> dict[str, Any]:
    classes = counted(tensor, in_order=tensor.dim() == 1, ignored=ignored)
    if not classes.total:
        return {"classes": classes}
    return {"low": min(classes.counts), "high": max(classes.counts), "classes": classes} | _ends(tensor, classes)


def _ends(tensor: Tensor, classes: ClassFact) -> dict[str, Any]:
    """The range of labels so many that not all of them were kept."""
    if classes.distinct <= _MOST_CLASSES or classes.total < tensor.numel():
        return {}
    low, high = torch.aminmax(tensor)
    return {"low": int(low), "high": int(high)}


def counted(labels: Tensor, *, in_order: bool = False, ignored: int | None = None) -> ClassFact:
    """How often each of these whole numbers occurs, and in what order."""
    flat = labels.reshape(-1)
    if flat.numel() <= _FEW_LABELS:
        values = flat.tolist()
        counts = dict(Counter(values))
    else:
        values = flat[:_FEW_LABELS].tolist()
        ids, often = torch.unique(flat, return_counts=True)
        counts = dict(zip(ids.tolist(), often.tolist(), strict=True))
    counts.pop(ignored, None)
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    changes = sum(map(operator.ne, values, values[1:])) / (len(values) - 1) if in_order and len(values) > 1 else None
    return ClassFact(
        counts={int(label): count for label, count in ranked[:_MOST_CLASSES]},
        distinct=len(ranked),
        total=sum(counts.values()),
        changes=changes,
    )
