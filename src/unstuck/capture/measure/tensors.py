"""Reads numbers out of tensors and changes nothing: no graph, no random draw, no wait for a device.

Facts about whole tensors come first, then samples of large ones, then `Scalars`: numbers on their way from a device.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from unstuck.capture.torch_hooks import internals
from unstuck.events import ClassFact, Event, TensorFact

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
_FIRST_ELEMENTS = 4096


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


def number(value: Any) -> float | None:
    """A Python number or a tensor of one, where it can be read without waiting for a device."""
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) else None


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


def first_elements(tensors: Sequence[Tensor]) -> Tensor:
    """Some of each tensor, one after the other, to see whether they have changed."""
    with reading():
        device = tensors[0].device
        return torch.cat([tensor.reshape(-1)[:_FIRST_ELEMENTS].to(device, torch.float32) for tensor in tensors])


# A small, fair part of a large tensor: enough to estimate norms, shares and histograms at a tenth of the cost.

BLOCKS, WIDTH = 256, 16
"""Contiguous blocks spread over the tensor. Single elements at a stride would beat with the length of its rows."""
_ENOUGH = 0.875
"""The share of its rows that a sample reaches at least."""
LOWEST = -40
BINS = 82
"""Zeros, then one bin for each power of two from 2^-40 to 2^40; the ends take what is beyond."""


def readable(tensor: Any) -> Tensor | None:
    """The tensor itself or what stands for its values: the real parts of a complex one, the filled part of a sparse
    one, this rank's shard of a distributed one. None if nothing can be read."""
    if is_plain(tensor):
        return tensor if isinstance(tensor, Tensor) else None
    if not isinstance(tensor, Tensor) or tensor.is_meta:
        return None
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return readable(local)
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return None
    if tensor.layout is torch.sparse_coo:
        return readable(tensor.detach()._values())
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().resolve_conj())
    return None


def sample(tensor: Tensor, blocks: int = BLOCKS) -> Tensor:
    """The whole of a small tensor, or a view of blocks of a large one that is dense in memory. Call it where no
    graph is built."""
    size = tensor.numel()
    if size <= 2 * blocks * WIDTH:
        return tensor
    if not is_dense(tensor):
        return tensor.narrow(0, 0, max(1, -(-blocks * WIDTH * tensor.shape[0] // size)))
    return tensor.as_strided(*_spread(size, blocks, max(tensor.stride())), tensor.storage_offset())


@functools.lru_cache(maxsize=1024)
def _spread(size: int, blocks: int, row: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shape and strides of a view of blocks in groups.

    Whole rows from block to block would always lead to the same columns: those of the dark edge, in the first layer of
    many a model. So each begins a share of a row further to the right than the last. What that shortens a group, the
    steps from group to group make up for; where these would lose the last rows, they stay as they are.
    """
    groups = math.isqrt(blocks)
    each = blocks // groups
    near = _shifted((size // groups - WIDTH) // (each - 1), row, (0.382, 0.618))
    longest = (size - (each - 1) * near - WIDTH) // (groups - 1)
    far = _shifted(longest, row, (0.29, 0.414, 0.586, 0.71))
    return (groups, each, WIDTH), (far if far >= _ENOUGH * longest else longest, near, 1)


def _shifted(longest: int, row: int, shares: tuple[float, ...]) -> int:
    """The largest stride that is whole rows and one of these shares of a row; multiples of the shares fall evenly into
    a row."""
    return longest if longest < row else longest - min((longest - int(share * row)) % row for share in shares)


def is_dense(tensor: Tensor) -> bool:
    """Does it fill its stretch of memory, in whatever order?"""
    return (
        tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        or (tensor.dim() == 2 and tensor.T.is_contiguous())
    )


def histograms(samples: Sequence[Tensor]) -> Tensor:
    """Counts of |x| by powers of two, `BINS` for each sample, one after the other."""
    values = joined(samples)
    exponents = torch.frexp(values)[1].clamp_(LOWEST, LOWEST + BINS - 2) - LOWEST + 1
    bins = torch.where(values == 0, 0, exponents)
    sizes = torch.tensor([part.numel() for part in samples])
    owners = torch.repeat_interleave(torch.arange(len(samples)), sizes).to(bins.device)
    return torch.bincount((owners * BINS + bins).long(), minlength=len(samples) * BINS)


def rows_of(counts: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """The counts of `histograms`, sample by sample."""
    whole = [int(count) for count in counts]
    return tuple(tuple(whole[start : start + BINS]) for start in range(0, len(whole), BINS))


def joined(samples: Sequence[Tensor]) -> Tensor:
    """The samples one after the other, in the widest of their kinds."""
    wide = torch.float64 if any(part.dtype is torch.float64 for part in samples) else torch.float32
    device = samples[0].device
    return torch.cat([part.reshape(-1).to(device, wide) for part in samples])


def rounded(values: Tensor) -> Tensor:
    """To four significant digits: the doubles nearest to those decimals, so that all but tiny ones are short."""
    digits = (3 - values.abs().log10_().floor_()).nan_to_num_(0.0, 0.0, 0.0).clamp_(-300, 300)
    up, down = torch.pow(10.0, digits.clamp_min(0)), torch.pow(10.0, (-digits).clamp_min_(0))
    return values.mul(up).div_(down).round_().mul_(down).div_(up)


def short(values: Sequence[float]) -> tuple[float | None, ...]:
    """To four significant digits, so that a record need not keep sixteen; None for what is not finite."""
    return tuple(float(f"{value:.4g}") if math.isfinite(value) else None for value in values)


# Numbers on their way from the device: at once on the CPU, elsewhere in one transfer, a window later.

_MOST_WAITING = 16
"""Numbers of windows that are not recorded travel together, so many at a time."""


class Slot:
    """A number, or a row of numbers, that has not arrived yet."""

    __slots__ = ("arrived", "then", "value")

    def __init__(self, then: Callable[[Any], Any] | None = None) -> None:
        self.arrived = False
        self.value: Any = None
        self.then = then
        """What to make of it when it has arrived."""


class _Part(Slot):
    """One of several things that arrive together."""

    __slots__ = ("_place", "_whole")

    def __init__(self, whole: Slot, place: int) -> None:
        self._whole, self._place = whole, place

    @property
    def arrived(self) -> bool:  # type: ignore[override]
        return self._whole.arrived

    @property
    def value(self) -> Any:
        return self._whole.value[self._place]


class Scalars:
    """Collects numbers on the device during a window and fills their slots one window later."""

    immediate = ("cpu",)
    """Devices whose numbers can be read without waiting."""

    def __init__(self) -> None:
        self._collected: list[tuple[Slot, Tensor]] = []
        self._travelling: tuple[list[Slot], _Transfer] | None = None

    @property
    def expecting(self) -> bool:
        """Is any number still on its way?"""
        return bool(self._collected) or self._travelling is not None

    def is_immediate(self, tensor: Tensor) -> bool:
        """Can it be read without waiting?"""
        return tensor.is_cpu and "cpu" in self.immediate  # the name of its device takes four times as long

    def later(self, scalar: Tensor) -> Any:
        """The number itself, or a `Slot` for it."""
        if self.is_immediate(scalar):
            return float(scalar.item())
        return self._slot(scalar)

    def row_later(self, row: Tensor, then: Callable[[tuple[float, ...]], Any] = tuple) -> Any:
        """What `then` makes of the numbers of a 1-d tensor, or a `Slot` for it."""
        return then(tuple(row.tolist())) if self.is_immediate(row) else self._slot(row, then)

    def parts_later(self, row: Tensor, then: Callable[[tuple[float, ...]], Sequence[Any]], parts: int) -> list[Any]:
        """The things that `then` makes of the numbers of a 1-d tensor, or a `Slot` for each."""
        made = self.row_later(row, then)
        return [_Part(made, place) for place in range(parts)] if isinstance(made, Slot) else list(made)

    def turn(self, sampled: bool = True) -> None:
        """A window ended: what was sent at the last turn has arrived, send what was collected since."""
        self._receive()
        if self._collected and (sampled or len(self._collected) >= _MOST_WAITING):
            slots, tensors = zip(*self._collected, strict=True)
            self._travelling = (list(slots), _Transfer(list(tensors)))
            self._collected = []

    def finish(self) -> None:
        """Wait for everything."""
        self.turn()
        self._receive()

    def _slot(self, tensor: Tensor, then: Callable[[Any], Any] | None = None) -> Slot:
        slot = Slot(then)
        self._collected.append((slot, tensor.detach()))
        return slot

    def _receive(self) -> None:
        if self._travelling is None:
            return
        slots, transfer = self._travelling
        self._travelling = None
        for slot, value in zip(slots, transfer.values(), strict=True):
            slot.value, slot.arrived = slot.then(value) if slot.then else value, True


class _Transfer:
    def __init__(self, tensors: list[Tensor]) -> None:
        with reading():
            device = tensors[0].device
            self._shapes = [tensor.shape for tensor in tensors]
            joined = torch.cat([tensor.to(device, torch.float32).reshape(-1) for tensor in tensors])
            self._done: torch.cuda.Event | None = None
            if device.type != "cuda":
                self._host = joined
                return
            # Copying into pinned memory does not wait for the stream, and the event shows when it is done.
            self._host = torch.empty(joined.shape, dtype=joined.dtype, device="cpu", pin_memory=True)
            self._host.copy_(joined, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def values(self) -> list[float | tuple[float, ...]]:
        if self._done is not None:
            self._done.synchronize()
        numbers = iter(self._host.tolist())
        return [
            tuple(next(numbers) for _ in range(shape[0])) if shape else float(next(numbers)) for shape in self._shapes
        ]


def slots_of(event: Event) -> dict[str, Slot]:
    """The fields of an event whose number has not been put in yet."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {name: value for name, value in fields.items() if isinstance(value, Slot)}


def filled(event: Event) -> Event:
    """The event with the numbers that have arrived in place of their slots."""
    values: dict[str, Any] = {name: slot.value for name, slot in slots_of(event).items()}
    replace: Callable[..., Event] = msgspec.structs.replace
    return replace(event, **values)
