"""Measures every parameter of an optimizer across its step: gradient, weight, and how far the step moved it."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.carried import Used
from unstuck.capture.objects import parameters_of
from unstuck.capture.samples import LOWEST, histograms, joined, readable, rows_of, sample, short
from unstuck.capture.tensors import HALVES, may_measure, reading
from unstuck.capture.watch import Watch
from unstuck.events import Histograms, TensorGauges, TensorsNamed

MOST_HISTOGRAMS = 512
_BYTES = 48
"""What the gauges of one tensor take in the record, roughly."""
_MOST_LAYOUTS = 8
"""Of a program that builds optimizer after optimizer only the last are remembered."""
_SHARE = 8 * 2**20
"""Each time so many bytes were written, the gauges come half as often."""

_GAUGES = ("grad_norm", "grad_max", "grad_zero", "weight_norm", "update_ratio", "unmoved")


class Started(NamedTuple):
    """What was read before the step."""

    parameters: list[Tensor]
    columns: list[int]
    """Where the gauges of those that can be read stand."""
    weights: Tensor
    """Copies of their samples, one after the other."""
    lengths: list[int]


class _Layout:
    def __init__(self, keys: tuple[int, ...], columns: list[int], known: int) -> None:
        self.keys = keys
        self.columns = columns
        self.known = known
        """How many modules had been seen to run when it was made."""
        self.measured = self.bytes = 0
        self.next_histogram = 0


class TensorMeter:
    """Reads samples of the weights before a step and compares after it, in detailed windows."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._layouts: dict[str, _Layout] = {}

    def before(self, optimizer: Optimizer) -> Started | None:
        """An optimizer is about to step."""
        if not self._watch.clock.measured or not may_measure():
            return None
        parameters = list(parameters_of(optimizer))
        layout = self._layout(optimizer, parameters)
        if not self._is_wanted(layout):
            return None
        with reading():
            found = [(layout.columns[place], readable(tensor)) for place, tensor in enumerate(parameters)]
            weights = [sample(tensor) for _, tensor in found if tensor is not None]
            if not weights:
                return None
            columns = [column for column, tensor in found if tensor is not None]
            return Started(parameters, columns, joined(weights), [part.numel() for part in weights])

    def after(self, optimizer: Optimizer, started: Started, used: Used | None) -> None:
        """It has stepped, with the gradients `used`."""
        if not may_measure():
            return
        layout = self._layouts[self._watch.objects.optimizer(optimizer)]
        with reading():
            tensors = [tensor for parameter in started.parameters if (tensor := readable(parameter)) is not None]
            weights = [sample(tensor) for tensor in tensors]
            if [part.numel() for part in weights] != started.lengths:
                return  # somebody replaced them in between
            gradients = [
                (layout.columns[place], sample(gradient))
                for place, parameter in enumerate(started.parameters)
                if (gradient := readable(parameter.grad)) is not None and gradient.numel()
            ]
            self._tell(optimizer, started, tensors, weights, gradients, used)
            if self._watch.clock.windows >= layout.next_histogram:
                layout.next_histogram = _next_of_1_2_5(self._watch.clock.windows)
                self._tell_histograms(optimizer, "weights", started.columns, weights)
                columns, samples = [column for column, _ in gradients], [part for _, part in gradients]
                self._tell_histograms(optimizer, "gradients", columns, samples)

    def _tell(
        self,
        optimizer: Optimizer,
        started: Started,
        tensors: list[Tensor],
        weights: list[Tensor],
        gradients: list[tuple[int, Tensor]],
        used: Used | None,
    ) -> None:
        watch = self._watch
        label = watch.objects.optimizer(optimizer)
        numbers = _numbers(started, weights, [part for _, part in gradients], used)
        sizes = [tensor.numel() / max(1, part.numel()) for tensor, part in zip(tensors, weights, strict=True)]
        lengths = dict(zip(started.columns, started.lengths, strict=True))
        # Of a sparse gradient other elements were read than of the weight.
        places = [(column, part.numel(), part.numel() == lengths.get(column)) for column, part in gradients]
        norms = _norm_columns(self._layouts[label], used)
        table = partial(_table, len(started.parameters), started.columns, sizes, places, norms)
        columns = watch.scalars.parts_later(numbers, table, len(_GAUGES))
        gauges = dict(zip(_GAUGES, columns, strict=True))
        watch.tell(TensorGauges(step=watch.clock.steps, optimizer=label, **gauges))

    def _tell_histograms(self, optimizer: Optimizer, of: str, columns: list[int], samples: list[Tensor]) -> None:
        watch = self._watch
        few = [(column, part) for column, part in zip(columns, samples, strict=True) if column < MOST_HISTOGRAMS]
        if not few:
            return
        kept = [column for column, _ in few]

        def by_column(numbers: tuple[float, ...]) -> tuple[tuple[int, ...], ...]:
            counts: list[tuple[int, ...]] = [()] * (max(kept) + 1)
            for column, row in zip(kept, rows_of(numbers), strict=True):
                counts[column] = row
            return tuple(counts)

        counts = watch.scalars.row_later(histograms([part for _, part in few]), by_column)
        label = watch.objects.optimizer(optimizer)
        watch.tell(Histograms(step=watch.clock.steps, of=of, optimizer=label, lowest=LOWEST, counts=counts))

    def _is_wanted(self, layout: _Layout) -> bool:
        """Ever rarer for a model of very many tensors, so that the record stays within its budget."""
        layout.measured += 1
        wanted = layout.measured % (1 << layout.bytes // _SHARE) == 0
        layout.bytes += _BYTES * len(layout.keys) * wanted
        return wanted

    def _layout(self, optimizer: Optimizer, parameters: list[Tensor]) -> _Layout:
        label = self._watch.objects.optimizer(optimizer)
        keys, known = tuple(map(id, parameters)), self._watch.order.count
        layout = self._layouts.get(label)
        if layout is None or layout.keys != keys or (layout.known != known and layout.measured < 3):
            fresh = _Layout(keys, [], known)
            if layout is not None:
                fresh.measured, fresh.bytes, fresh.next_histogram = layout.measured, layout.bytes, layout.next_histogram
            fresh.columns = self._name(label, optimizer, parameters)
            if len(self._layouts) >= _MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            layout = self._layouts[label] = fresh
        return layout

    def _name(self, label: str, optimizer: Optimizer, parameters: list[Tensor]) -> list[int]:
        """Tell the names in the order of execution; the column of each parameter."""
        owners = self._owners()
        groups = [number for number, group in enumerate(optimizer.param_groups) for _ in group["params"]]
        facts = [owners.get(id(parameter), ("", "", -1)) for parameter in parameters]
        order = sorted(range(len(parameters)), key=lambda place: (facts[place][2] < 0, facts[place][2], place))
        unreadable = [facts[place][0] for place in order if readable(parameters[place]) is None]
        if unreadable:
            few = ", ".join(name or "a parameter" for name in unreadable[:3])
            self._watch.note(f"the values of {few}{' ...' if len(unreadable) > 3 else ''}: no kind that can be read")
        self._watch.tell(
            TensorsNamed(
                step=self._watch.clock.steps,
                optimizer=label,
                names=tuple(facts[place][0] or f"param_groups[{groups[place]}]" for place in order),
                kinds=tuple(facts[place][1] for place in order),
                sizes=tuple(parameters[place].numel() for place in order),
                dimensions=tuple(parameters[place].dim() for place in order),
                groups=tuple(groups[place] for place in order),
                depths=tuple(facts[place][2] for place in order),
            )
        )
        columns = [0] * len(parameters)
        for column, place in enumerate(order):
            columns[place] = column
        return columns

    def _owners(self) -> dict[int, tuple[str, str, int]]:
        """Name, kind of module and depth by the identity of the parameter."""
        found: dict[int, tuple[str, str, int]] = {}
        for model in self._watch.objects.models():
            root: nn.Module | None = model.module
            for name, module in root.named_modules() if root is not None else ():
                depth = self._watch.order.of(module)
                for own, parameter in module._parameters.items():
                    if parameter is not None:
                        whole = f"{name}.{own}" if name else own
                        found.setdefault(id(parameter), (whole, type(module).__name__, depth))
        return found


def _numbers(started: Started, weights: list[Tensor], gradients: list[Tensor], used: Used | None) -> Tensor:
    """Everything that must be read, in one row: two norms per weight, two figures per gradient, how many elements
    moved, the exact norms of the gradients."""
    before = started.weights
    change = joined(weights) - before
    found = [*_norms(before, started.lengths), *_norms(change, started.lengths)]
    if gradients:
        sizes, lengths = joined(gradients).abs(), [part.numel() for part in gradients]
        found += torch._foreach_max(torch.split(sizes, lengths))
        found += _norms(sizes, lengths, 0)
    if any(part.dtype in HALVES for part in weights):
        found += _norms(change, started.lengths, 0)
    row = torch.stack(found)
    return row if used is None else torch.cat([row, used.norms.to(row)])


def _norms(values: Tensor, lengths: list[int], order: float = 2) -> tuple[Tensor, ...]:
    return tuple(torch._foreach_norm(torch.split(values, lengths), order))


def _table(
    width: int,
    columns: list[int],
    sizes: list[float],
    gradients: list[tuple[int, int, bool]],
    norms: list[tuple[int, int]],
    numbers: tuple[float, ...],
) -> tuple[tuple[float | None, ...], ...]:
    """The gauges in the order of `TensorGauges`, from the row of `_numbers`; None where nothing was measured."""
    table = [[math.nan] * width for _ in _GAUGES]
    row = iter(numbers)
    count, grads = len(columns), len(gradients)
    before, change = list(islice(row, count)), list(islice(row, count))
    for column, size, weight, moved in zip(columns, sizes, before, change, strict=True):
        table[3][column] = weight * math.sqrt(size)
        table[4][column] = moved / weight if weight else math.nan
    largest, filled = list(islice(row, grads)), list(islice(row, grads))
    for (column, size, _), high, present in zip(gradients, largest, filled, strict=True):
        table[1][column], table[2][column] = high, 1 - present / size
    rest = list(row)
    if len(rest) > len(norms):
        moved_by_column = dict(zip(columns, rest, strict=False))
        for (column, _, comparable), present in zip(gradients, filled, strict=True):
            if present and comparable and column in moved_by_column:
                table[5][column] = max(0.0, 1 - moved_by_column[column] / present)
        rest = rest[count:]
    for column, place in norms:
        table[0][column] = rest[place]
    return tuple(short(row) for row in table)


def _norm_columns(layout: _Layout, used: Used | None) -> list[tuple[int, int]]:
    """Which of the exact norms of gradients goes into which column."""
    if used is None:
        return []
    known = [(layout.columns[place], used.gradients.get(key)) for place, key in enumerate(layout.keys)]
    return [(column, found[1]) for column, found in known if found is not None]


def _next_of_1_2_5(number: int) -> int:
    """The next larger of 1, 2, 5, 10, 20, 50, ..."""
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > number:
                return digit * scale
        scale *= 10
