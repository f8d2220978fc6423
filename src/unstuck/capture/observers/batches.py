"""Looks at batches: as a DataLoader gave them, as a model received them, as its first layer did."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unstuck.capture.measure.tensors import counted, is_plain, is_whole, may_measure, reading
from unstuck.capture.preview.calls import Call
from unstuck.capture.preview.first_batch import FirstBatch
from unstuck.capture.preview.repeated_batches import RepeatedBatches
from unstuck.capture.watch import Watch
from unstuck.capture.window import Ended, Observer
from unstuck.events import BatchSeen, InputFact

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SAMPLE = 4096
_MOST_MODELS = 32
_LARGEST = 2**24
"""Tensors with more elements than this are not looked through."""
_MOST_ROWS = 4096
_MOST_TENSORS = 8
_PRINTED = 65536
"""So many elements from each end of a tensor go into its fingerprint."""
_MOST_COLUMNS = 4096
_LARGE = 100
_MOST_OPEN = 16
_FIRST_LOOKS = 3
_LATER_LOOKS = (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)


class Batch(NamedTuple):
    """A batch in numbers."""

    inputs: tuple[InputFact, ...]
    examples: int
    duplicates: int | None
    constant: float | None
    fingerprint: tuple[float, ...]


def looked_at(tensors: list[tuple[str, Tensor]]) -> Batch:
    """What there is to say of a batch. Its rows are those of all tensors with the first one's length together."""
    with reading():
        readable = [(name, tensor.detach()) for name, tensor in tensors if _is_readable(tensor)]
        size = next((len(tensor) for _, tensor in readable if tensor.dim() > 0), 0)
        rows = [tensor for _, tensor in readable if tensor.dim() > 0 and len(tensor) == size]
        total = sum(tensor.numel() for tensor in rows)
        known = 2 <= size <= _MOST_ROWS and 0 < total <= _LARGEST
        return Batch(
            tuple(_fact(name, tensor) for name, tensor in tensors),
            size,
            _duplicates(rows) if known else None,
            _constant(rows) if known else None,
            fingerprint_of(readable),
        )


def fingerprint_of(tensors: list[tuple[str, Tensor]]) -> tuple[float, ...]:
    """Numbers that no other batch has."""
    return tuple(number for _, tensor in tensors if _is_readable(tensor) for number in _fingerprint(tensor.detach()))


def named_tensors(value: Any, name: str = "", depth: int = 2) -> list[tuple[str, Tensor]]:
    """The tensors of a batch by their place in it: `0`, `1`, `image`, `inputs.mask`."""
    if isinstance(value, Tensor):
        return [] if value.is_nested else [(name or "batch", value)]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    found: list[tuple[str, Tensor]] = []
    for key, part in items if depth else ():
        found += named_tensors(part, f"{name}.{key}" if name else str(key), depth - 1)
        if len(found) >= _MOST_TENSORS:
            break
    return found[:_MOST_TENSORS]


def _is_readable(tensor: Tensor) -> bool:
    return (is_plain(tensor) or is_whole(tensor)) and 0 < tensor.numel() <= _LARGEST


def _fact(name: str, tensor: Tensor) -> InputFact:
    bare = InputFact(
        name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), requires_grad=tensor.requires_grad
    )
    if not _is_readable(tensor):
        return bare
    values = tensor.detach().reshape(-1)
    values = values if values.dtype is torch.float64 else values.float()
    finite = values[torch.isfinite(values)]
    broken = 1 - finite.numel() / values.numel()
    if finite.numel() == 0:
        return InputFact(name, bare.shape, bare.dtype, requires_grad=bare.requires_grad, broken=broken)
    low, high = (float(end) for end in torch.aminmax(finite))
    sample = finite[:: -(-finite.numel() // _SAMPLE)]
    return InputFact(
        name,
        bare.shape,
        bare.dtype,
        low,
        high,
        tuple(torch.quantile(sample, sample.new_tensor(QUANTILES)).tolist()),
        bare.requires_grad,
        mean=_number(finite.mean()),
        spread=_number(finite.std(correction=0)),
        broken=broken,
        ids=counted(tensor) if is_whole(tensor) and tensor.dim() == 2 else None,
        column=_large_column(tensor.detach()) if is_plain(tensor) and tensor.dim() == 2 else None,
    )


def _large_column(table: Tensor) -> tuple[int, float, float] | None:
    if not 2 <= table.shape[1] <= _MOST_COLUMNS:
        return None
    sizes = table[:_MOST_ROWS].float().square().mean(0).sqrt()
    usual, place = float(sizes.median()), int(sizes.argmax())
    largest = float(sizes[place])
    return (place, largest, usual) if math.isfinite(largest) and largest > _LARGE * usual > 0 else None


def _number(scalar: Tensor) -> float | None:
    value = float(scalar)
    return value if math.isfinite(value) else None


def _duplicates(tensors: list[Tensor]) -> int:
    """How many rows equal another one. Rows that differ are told apart by a weighted sum, equal ones compared."""
    marks = torch.stack([_marks(tensor) for tensor in tensors]).sum(0).nan_to_num()
    order = marks.argsort()
    alike = marks[order][1:] == marks[order][:-1]
    pairs = [(int(order[i]), int(order[i + 1])) for i in alike.nonzero().flatten().tolist()]
    equal = {row for pair in pairs if all(torch.equal(t[pair[0]], t[pair[1]]) for t in tensors) for row in pair}
    return len(equal)


def _marks(tensor: Tensor) -> Tensor:
    rows = tensor.reshape(len(tensor), -1)
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).sqrt()
    return rows.double() @ weights


def _constant(tensors: list[Tensor]) -> float:
    """The share of features that are the same in all rows."""
    same = [(tensor == tensor[:1]).reshape(len(tensor), -1).all(0) for tensor in tensors]
    return sum(int(part.sum()) for part in same) / sum(part.numel() for part in same)


def _fingerprint(tensor: Tensor) -> tuple[float, ...]:
    flat = tensor.reshape(-1)
    if flat.numel() > 2 * _PRINTED:
        flat = torch.cat([flat[:_PRINTED], flat[-_PRINTED:]])
    flat = flat.double().nan_to_num()
    weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64, device=flat.device).sqrt()
    return (float(tensor.numel()), float(flat.sum()), float(flat @ weights))


class Batches(Observer):
    """Records a few times in a run what each model received in training, and what reached its first layer."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: dict[str, int] = {}
        self._root: nn.Module | None = None
        self._first: tuple[nn.Module, InputFact | None] | None = None
        self._call: Call | None = None
        """That of the root."""
        self._inside: list[tuple[str, Tensor, Tensor]] = []
        """What losses inside of it were given."""
        self._open: list[Call] = []
        """Calls that a loss may still be about."""
        self._first_batch = FirstBatch(watch)
        self._repeated = RepeatedBatches(watch)
        protect = watch.guard.protect
        self._draw = protect("what the model receives", self._first_batch.draw)
        self._returned = protect("what the model predicts", self._has_returned)
        self._compare = protect("what losses are given", self._compared)
        self._settle = protect("what the model predicts", self._has_settled)
        self._tell_shown = protect("what the model receives", self._first_batch.window_ended)
        self._tell_last = protect("what the model receives", self._first_batch.finish)

    def begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A model is called in a sampled window."""
        self._root, self._first, self._call = None, None, None
        self._inside.clear()
        if not module.training or not torch.is_grad_enabled() or not has_weights(module) or not may_measure():
            return
        label = self._watch.objects.model(module).label
        if label not in self._seen and len(self._seen) >= _MOST_MODELS:
            return
        count = self._seen[label] = self._seen.get(label, 0) + 1
        if count <= _FIRST_LOOKS or count in _LATER_LOOKS:
            self._root = module
            self._call = Call(label, self._watch.window.steps, learning=True, training=True)
            if self._first_batch.wants(label):
                self._draw(self._call, module, _arguments(module, (args,)))
            self.entered(module, args)

    def entered(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module is called inside a model; the first one with weights of its own is looked at."""
        if self._root is None or self._first is not None or not isinstance(module._modules, dict) or module._modules:
            return
        if all(parameter is None for parameter in module._parameters.values()):
            return
        given = args[0] if args and isinstance(module, _WEIGHTED) else None
        with reading():
            self._first = module, _fact("input", given) if isinstance(given, Tensor) and is_plain(given) else None

    def ended(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """The model returned; `arguments` are what it was given, by position and by name."""
        if self._root is not module:
            return
        first, call = self._first, self._call
        self._root, self._first, self._call = None, None, None
        tensors = _arguments(module, arguments)
        if not tensors:
            self._inside.clear()
            return
        watch, label = self._watch, self._watch.objects.model(module).label
        if call is not None and self._first_batch.wants(label):
            self._draw(call, module, _arguments(module, ((), *arguments[1:])), more=True)
        batch = looked_at(tensors)
        if call is not None and output is not None:
            self._returned(call, batch.fingerprint, output)
        self._inside.clear()
        step = watch.window.steps
        watch.tell(
            BatchSeen(
                step=step,
                place=watch.places.here(),
                model=label,
                inputs=batch.inputs,
                duplicates=batch.duplicates,
                constant=batch.constant,
                examples=batch.examples,
                layer=_name_in(module, first[0]) if first else "",
                layer_kind=type(first[0]).__name__ if first else "",
                layer_input=first[1] if first else None,
            )
        )

    def evaluated(self, module: nn.Module, label: str, arguments: tuple[Any, ...], output: Any) -> None:
        """A stretch of evaluation begins with this call."""
        if may_measure() and output is not None:
            with reading():
                fingerprint = fingerprint_of(_arguments(module, arguments))
            call = Call(label, self._watch.window.steps, learning=False, training=module.training)
            self._returned(call, fingerprint, output)

    def _has_returned(self, call: Call, fingerprint: tuple[float, ...], output: Any) -> None:
        if call.learning:
            self._first_batch.returned(call)
        call.returned(output)
        for given in self._inside:
            call.compare(*given)
        self._inside.clear()
        self._repeated.add(call, fingerprint)
        if len(self._open) < _MOST_OPEN:
            self._open.append(call)

    def compared(self, loss: str, source: Tensor, target: Tensor) -> None:
        """A loss was given these."""
        if self._call is not None or self._open:
            self._compare(loss, source, target)

    def _compared(self, loss: str, source: Tensor, target: Tensor) -> None:
        if not may_measure() or not (is_plain(source) and (is_plain(target) or is_whole(target))):
            return
        if self._call is not None:
            self._inside.append((loss, source, target))
            return
        for call in reversed(self._open):
            if call.compare(loss, source, target):
                return

    def settle(self) -> None:
        """An evaluation ended: losses from now on are not about its batch."""
        if self._open:
            self._settle()

    def _has_settled(self) -> None:
        calls, self._open = self._open, []
        for call in calls:
            call.settle()
        self._repeated.settle()

    def window_began(self, ended: Ended) -> None:
        """No loss of this window is about a batch of the last."""
        if ended.recorded:
            self.settle()
            self._tell_shown()

    def finish(self) -> None:
        """The run ended."""
        self.settle()
        self._tell_last()


def has_weights(module: nn.Module) -> bool:
    """Is it more than a transform of the data, which may be a module too?"""
    return next(module.parameters(), None) is not None


def _arguments(module: nn.Module, arguments: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    """The tensors among the arguments, by the names that `forward` gives them."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    names = code.co_varnames[1 : code.co_argcount] if code is not None else ()
    given: dict[str, Any] = {}
    for index, value in enumerate(arguments[0]):
        given[names[index] if index < len(names) else str(index)] = value
    for part in arguments[1:]:
        given.update(part if isinstance(part, dict) else {})
    return named_tensors(given)


def _name_in(root: nn.Module, layer: nn.Module) -> str:
    return next((name for name, module in root.named_modules() if module is layer), "")
