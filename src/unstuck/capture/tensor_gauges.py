"""Measures every parameter of an optimizer across its step: gradient, weight, and how far the step moved it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.carried import Used
from unstuck.capture.objects import parameters_of
from unstuck.capture.ring import Ring
from unstuck.capture.samples import BLOCKS, LOWEST, WIDTH, histograms, readable, rows_of, sample
from unstuck.capture.tensor_tables import GAUGES, Row, Shape, split, table
from unstuck.capture.tensors import HALVES, is_plain, may_measure, norms, reading
from unstuck.capture.watch import Watch
from unstuck.events import Gauges, Histograms, TensorGauges, TensorsNamed

MOST_HISTOGRAMS = 512
_BYTES = 48
"""What the gauges of one tensor take in the record, roughly."""
_MOST_LAYOUTS = 8
"""Of a program that builds optimizer after optimizer only the last are remembered."""
_MOST_SAMPLED = 2**19
"""Elements of all tensors together that are copied before a step; a model of very many has smaller samples."""
_FEWEST_BLOCKS = 4
_SHARE = 8 * 2**20
"""Each time so many bytes were written, the gauges come half as often."""

NORM_SECONDS = 0.7e-9
"""What one element adds to the time that the norm of a gradient takes."""
NORM_BUDGET = 0.02
"""The share of a plain window from which on norms of gradients are estimated from samples, where not everything is
recorded."""


class Started(NamedTuple):
    """A step under way whose tensors are measured."""

    layout: _Layout
    parameters: list[Tensor]


class _Step:
    """A step that was measured and has not been told."""

    def __init__(self, number: int, row: Row) -> None:
        self.number = number
        self.row = row
        self.gauges: Gauges | None = None
        """What is to be told of this step together with the gauges of its tensors."""


class _Layout:
    """The parameters of one optimizer, their columns and their samples."""

    def __init__(self, label: str, keys: tuple[int, ...], known: int) -> None:
        self.label = label
        self.keys = keys
        self.columns: list[int] = []
        self.known = known
        """How many modules had been seen to run when it was made."""
        self.measured = self.bytes = 0
        self.next_histogram = 0
        self.halves = False
        self.elements = 0
        self.places: list[int] = []
        """Which of the parameters can be read; then, for each of these:"""
        self.lengths: list[int] = []
        self.sizes: list[float] = []
        """How many times larger the tensor is than its sample."""
        self.ring: Ring | None = None
        self.window = -2
        """When it was last measured."""
        self.restless = False
        """Do the weights change between the steps too, or can that not be told without waiting?"""
        self.versions = 0
        """Counts the changes of the parameters, up to the last step."""
        self.steps: list[_Step] = []

    def describe(self, places: list[int], tensors: list[Tensor], samples: list[Tensor]) -> None:
        """Note what the tensors are like, and make room for their samples."""
        self.places = places
        self.lengths = [part.numel() for part in samples]
        self.sizes = [whole.numel() / length for whole, length in zip(tensors, self.lengths, strict=True)]
        self.elements = sum(whole.numel() for whole in tensors)
        self.halves = any(whole.dtype in HALVES for whole in tensors)
        self.ring = Ring(samples)


class TensorMeter:
    """Copies samples of the weights around a step, in measured windows, and tells what a few steps have shown."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._layouts: dict[str, _Layout] = {}
        self._few_elements = 0.0
        self._views: weakref.WeakKeyDictionary[Optimizer, tuple[list[Any], list[Tensor]]] = weakref.WeakKeyDictionary()
        """Views of the parameters, and where in memory these were. They keep nothing alive that the optimizer has let
        go of for longer than a step."""

    def pace(self) -> None:
        """Decide of how large a model the norms of the gradients are computed whole between sampled windows."""
        self._few_elements = NORM_BUDGET * self._watch.clock.typical_seconds / NORM_SECONDS

    def before(self, optimizer: Optimizer) -> Started | None:
        """An optimizer is about to step."""
        if not may_measure():
            return None
        parameters = list(parameters_of(optimizer))
        layout = self._layout(optimizer, parameters)
        if not self._is_wanted(layout):
            return None
        clock = self._watch.clock
        follows = layout.window == clock.windows - 1 and layout.versions == _versions(parameters)
        samples = self._known_views(optimizer, parameters)
        known = samples is not None and layout.ring is not None
        if clock.sampled or layout.restless or not follows or not known:
            with reading():
                if samples is None or layout.ring is None:
                    samples = self._look_again(optimizer, layout, parameters)
                if layout.ring is None or not samples:
                    return None
                immediate = self._watch.scalars.is_immediate(samples[0])
                same = layout.ring.begin(samples, compare=follows and immediate)
                layout.restless = layout.restless or not same or not immediate
        layout.window = clock.windows
        return Started(layout, parameters)

    def after(self, optimizer: Optimizer, started: Started, used: Used | None) -> bool:
        """It has stepped, with the gradients `used` if those were measured. True if `keep` is to be called."""
        layout, parameters = started
        ring = layout.ring
        if not may_measure() or ring is None:
            return False
        with reading():
            weights = self._known_views(optimizer, parameters)
            if weights is None:
                whole = [readable(parameters[place]) for place in layout.places]
                weights = _samples([tensor for tensor in whole if tensor is not None])
            if not ring.fits(weights):
                layout.window = -2
                return False  # somebody replaced them in between
            numbers, gradients, odd = self._read_gradients(layout, ring, parameters)
            ring.end(weights, gradients, numbers)
            row = Row(numbers, self._exact(layout, parameters, used), odd)
            layout.steps.append(_Step(self._watch.clock.steps, row))
            layout.versions = _versions(parameters)
            if self._watch.clock.windows >= layout.next_histogram:
                layout.next_histogram = _next_of_1_2_5(self._watch.clock.windows)
                self._tell_histograms(layout, "weights", layout.places, weights)
                self._tell_histograms(layout, "gradients", [layout.places[number] for number in numbers], gradients)
        return True

    def forget(self) -> None:
        """Nothing is measured for a while: hold on to nothing of the program's."""
        self._views.clear()

    def _known_views(self, optimizer: Optimizer, parameters: list[Tensor]) -> list[Tensor] | None:
        known = self._views.get(optimizer)
        return known[1] if known is not None and known[0] == _whereabouts(parameters) else None

    def _look_again(self, optimizer: Optimizer, layout: _Layout, parameters: list[Tensor]) -> list[Tensor]:
        """Samples of the parameters that can be read."""
        whole = [(place, readable(parameter)) for place, parameter in enumerate(parameters)]
        found = [(place, tensor) for place, tensor in whole if tensor is not None and tensor.numel()]
        places, tensors = [place for place, _ in found], [tensor for _, tensor in found]
        samples = _samples(tensors)
        if samples and (layout.ring is None or layout.places != places or not layout.ring.fits(samples)):
            self.flush()
            layout.describe(places, tensors, samples)
        self._views.pop(optimizer, None)
        if self._watch.clock.every and all(map(is_plain, parameters)) and len(tensors) == len(parameters):
            kept = [part.data if isinstance(part, nn.Parameter) else part for part in samples]
            self._views[optimizer] = (_whereabouts(parameters), kept)
        return samples

    def keep(self, gauges: Gauges, now: bool) -> None:
        """What is to be told of the step that was just measured: at once, or with the steps that follow."""
        layout = self._layouts[gauges.optimizer]
        if not layout.steps:  # told already, because of a value that was not finite
            self._watch.tell(gauges)
            return
        layout.steps[-1].gauges = gauges
        if now or layout.ring is None or layout.ring.is_full:
            self.flush()

    def flush(self) -> None:
        """Tell of all steps that have not been told, in their order."""
        if may_measure():
            self._tell([event for layout in self._layouts.values() for event in self._told_of(layout)])

    def _tell(self, events: list[TensorGauges | Gauges]) -> None:
        for event in sorted(events, key=lambda event: event.step):
            self._watch.tell(event)

    def _read_gradients(
        self, layout: _Layout, ring: Ring, parameters: list[Tensor]
    ) -> tuple[list[int], list[Tensor], list[tuple[int, Tensor]]]:
        """Samples of the gradients there are, and whose they are; then what is read at once of those that hold other
        elements than the weight, such as sparse ones."""
        numbers, samples, odd = [], [], []
        blocks = _blocks(len(layout.places))
        for number, place in enumerate(layout.places):
            gradient = parameters[place].grad
            if gradient is None:
                continue
            whole = readable(gradient.coalesce() if gradient.layout is torch.sparse_coo else gradient)
            if whole is None or not whole.numel():
                continue
            part = sample(whole, blocks)
            if part.shape == ring.shapes[number] and gradient.layout is torch.strided:
                numbers.append(number)
                samples.append(part)
            else:
                odd.append((number, _figures_of(whole)))
        return numbers, samples, odd

    def _exact(self, layout: _Layout, parameters: list[Tensor], used: Used | None) -> tuple[list[int], Tensor] | None:
        """The norms of the whole gradients, if they are known or cost next to nothing."""
        if used is not None:
            numbers = {layout.keys[place]: number for number, place in enumerate(layout.places)}
            known = [
                (number, index)
                for key, (_, index) in used.gradients.items()
                if (number := numbers.get(key)) is not None
            ]
            return [number for number, _ in known], used.norms[[index for _, index in known]]
        if layout.elements > self._few_elements:
            return None
        whole = [(number, parameters[place].grad) for number, place in enumerate(layout.places)]
        plain = [(number, gradient) for number, gradient in whole if gradient is not None and is_plain(gradient)]
        each = norms([gradient for _, gradient in plain])
        return None if each is None else ([number for number, _ in plain], each)

    def _told_of(self, layout: _Layout) -> Iterator[TensorGauges | Gauges]:
        """What there is to tell of its steps."""
        steps, layout.steps = layout.steps, []
        if not steps or layout.ring is None:
            return
        watch, width = self._watch, len(layout.keys)
        columns = [layout.columns[place] for place in layout.places]
        shape = Shape(columns, width, layout.lengths, layout.sizes, layout.halves)
        with reading():
            numbers = table(layout.ring.reduced(), shape, [step.row for step in steps])
        made = watch.scalars.parts_later(numbers, partial(split, width, len(steps)), (len(GAUGES) + 1) * len(steps))
        for step, start in zip(steps, range(0, len(made), len(GAUGES) + 1), strict=True):
            told = dict(zip(GAUGES, made[start : start + len(GAUGES)], strict=True))
            yield TensorGauges(step=step.number, optimizer=layout.label, **told)
            if step.gauges is not None:
                known = step.gauges.grad_norm is not None or not (step.row.places or step.row.odd)
                norm = step.gauges.grad_norm if known else made[start + len(GAUGES)]
                yield msgspec.structs.replace(step.gauges, grad_norm=norm)

    def _tell_histograms(self, layout: _Layout, of: str, places: list[int], samples: list[Tensor]) -> None:
        watch = self._watch
        columns = [layout.columns[place] for place in places]
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
        watch.tell(Histograms(step=watch.clock.steps, of=of, optimizer=layout.label, lowest=LOWEST, counts=counts))

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
            fresh = _Layout(label, keys, known)
            if layout is not None:
                self.flush()
                fresh.measured, fresh.bytes, fresh.next_histogram = layout.measured, layout.bytes, layout.next_histogram
            fresh.columns = self._name(label, optimizer, parameters)
            if len(self._layouts) >= _MOST_LAYOUTS:
                self.flush()
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


def _blocks(tensors: int) -> int:
    """So many of each tensor that all samples together stay small."""
    return max(_FEWEST_BLOCKS, min(BLOCKS, _MOST_SAMPLED // (WIDTH * max(1, tensors))))


def _samples(tensors: list[Tensor]) -> list[Tensor]:
    blocks = _blocks(len(tensors))
    return [sample(tensor, blocks) for tensor in tensors]


def _whereabouts(parameters: list[Tensor]) -> list[Any]:
    """Where and how they lie in memory."""
    return [(parameter.data_ptr(), parameter.shape, parameter.stride()) for parameter in parameters]


def _versions(parameters: list[Tensor]) -> int:
    """Grows whenever one of them is changed, unless through `.data`."""
    return sum(parameter._version for parameter in parameters if not parameter.is_inference())


def _figures_of(gradient: Tensor) -> Tensor:
    """Norm, largest element and share of zeros."""
    values = gradient.float()
    zero = (values == 0).float().mean()
    return torch.stack([torch.linalg.vector_norm(values), values.abs().max(), zero])


def _next_of_1_2_5(number: int) -> int:
    """The next larger of 1, 2, 5, 10, 20, 50, ..."""
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > number:
                return digit * scale
        scale *= 10
