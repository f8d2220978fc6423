"""Measures every parameter of an optimizer across its step: gradient, weight, and how far the step moved it."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.measure.ring import Ring
from unstuck.capture.measure.samples import BLOCKS, LOWEST, WIDTH, histograms, readable, rows_of, sample
from unstuck.capture.measure.tensor_layouts import LONG_AGO, Layout, Layouts, Step
from unstuck.capture.measure.tensor_tables import Row, Shape, split, table
from unstuck.capture.measure.tensors import is_plain, may_measure, norms, reading
from unstuck.capture.objects import parameters_of
from unstuck.capture.watch import Watch
from unstuck.events import Gauges, Histograms, TensorGauges

MOST_HISTOGRAMS = 512
_MOST_SAMPLED = 2**19
"""Elements of all tensors together that are copied before a step; a model of very many has smaller samples."""
_FEWEST_BLOCKS = 4

NORM_SECONDS = 0.7e-9
"""What one element adds to the time that the norm of a gradient takes."""
NORM_BUDGET = 0.02
"""The share of a plain window from which on norms of gradients are estimated from samples, where not everything is
recorded."""


class Used(NamedTuple):
    """What a step used: the gradients' identities by those of their parameters, and their norms, in one order."""

    gradients: dict[int, tuple[int, int]]
    norms: Tensor


def used(parameters: Sequence[Tensor], gradients: Sequence[Tensor], each: Tensor) -> Used:
    """Only identities are kept: holding the tensors would keep them in memory."""
    places = enumerate(zip(parameters, gradients, strict=True))
    return Used({id(parameter): (id(gradient), number) for number, (parameter, gradient) in places}, each)


class Started(NamedTuple):
    """A step under way whose tensors are measured."""

    layout: Layout
    parameters: list[Tensor]


class _Views(NamedTuple):
    """Samples of the parameters, and where in memory these were. They keep nothing alive that the optimizer has let go
    of for longer than a step."""

    optimizer: weakref.ref[Optimizer]
    whereabouts: list[tuple[int, torch.Size]]
    samples: list[Tensor]


class TensorMeter:
    """Copies samples of the weights around a step, in measured windows, and tells what a few steps have shown."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._layouts = Layouts(watch, self.flush)
        self._few_elements = 0.0
        self._views: dict[int, _Views] = {}
        """By the identity of the optimizer, as long as it lives."""

    def pace(self) -> None:
        """Decide of how large a model the norms of the gradients are computed whole between sampled windows."""
        self._few_elements = NORM_BUDGET * self._watch.window.typical_seconds / NORM_SECONDS

    @property
    def may_follow(self) -> bool:
        """Is `follow` enough for the steps to come?"""
        window = self._watch.window
        newest = (layout for layout in self._layouts.known.values() if layout.window == window.number - 1)
        return window.every == 1 and bool(self._views) and any(layout.is_calm for layout in newest)

    def before(self, optimizer: Optimizer) -> Started | None:
        """An optimizer is about to step."""
        if not may_measure():
            return None
        parameters = list(parameters_of(optimizer))
        layout = self._layouts.of(optimizer, parameters)
        if not layout.count():
            return None
        window, versions = self._watch.window, _versions(parameters)
        follows = layout.window == window.number - 1 and layout.versions == versions
        look_again = window.sampled or layout.ring is None
        samples = None if look_again else self._known_views(optimizer, parameters)
        if layout.restless or not follows or samples is None:
            with reading():
                samples = samples or self._look_again(optimizer, layout, parameters)
                if layout.ring is None or not samples:
                    return None
                immediate = self._watch.scalars.is_immediate(samples[0])
                same = layout.ring.begin(samples, compare=follows and immediate)
                layout.restless = layout.restless or not same or not immediate
        layout.window, layout.versions, layout.in_a_row = window.number, versions, follows
        return Started(layout, parameters)

    def after(self, optimizer: Optimizer, started: Started, used: Used | None) -> bool:
        """It has stepped, with the gradients `used` if those were measured. True if `keep` is to be called."""
        layout, parameters = started
        if not may_measure() or layout.ring is None:
            return False
        with reading():
            weights = self._known_views(optimizer, parameters)
            if weights is None:
                whole = [readable(parameters[place]) for place in layout.places]
                weights = _samples([tensor for tensor in whole if tensor is not None])
            if not layout.ring.fits(weights):
                layout.window = LONG_AGO
                return False  # somebody replaced them in between
            versions = _versions(parameters)
            changes = list(map(operator.sub, versions, layout.versions))
            layout.restless = layout.restless or (layout.in_a_row and changes != layout.by_step)
            layout.by_step = changes
            self._read(layout, parameters, weights, versions, used)
        return True

    def follow(self, optimizer: Optimizer) -> bool:
        """It has stepped again, after a step that was measured. As `after`, or False if `before` is needed: because
        something else than steps has changed the weights."""
        parameters = list(parameters_of(optimizer))
        layout, versions = self._layouts.of(optimizer, parameters), _versions(parameters)
        weights = self._known_views(optimizer, parameters)
        in_a_row = layout.window == self._watch.window.number - 1 and layout.is_calm
        expected = in_a_row and list(map(operator.sub, versions, layout.versions)) == layout.by_step
        if weights is None or not expected or not may_measure():
            layout.window = LONG_AGO
            self._views.pop(id(optimizer), None)
            return False
        layout.count()
        layout.window = self._watch.window.number
        with reading():
            self._read(layout, parameters, weights, versions, None)
        return True

    def _read(
        self, layout: Layout, parameters: list[Tensor], weights: list[Tensor], versions: list[int], used: Used | None
    ) -> None:
        """Copy what a step has left: the weights, and the gradients it has used."""
        ring, windows = layout.ring, self._watch.window.number
        assert ring is not None
        numbers, gradients, odd = _gradients(layout, ring, parameters)
        ring.end(weights, gradients, numbers)
        row = Row(numbers, self._exact(layout, parameters, used), odd)
        layout.steps.append(Step(self._watch.window.steps, row))
        layout.versions = versions
        if windows >= layout.next_histogram:
            layout.next_histogram = _next_of_1_2_5(windows)
            self._tell_histograms(layout, "weights", layout.places, weights)
            self._tell_histograms(layout, "gradients", [layout.places[number] for number in numbers], gradients)

    def forget(self) -> None:
        """Nothing is measured for a while: hold on to nothing of the program's."""
        self._views.clear()

    def _forget(self, key: int, gone: object) -> None:
        self._views.pop(key, None)

    def _known_views(self, optimizer: Optimizer, parameters: list[Tensor]) -> list[Tensor] | None:
        known = self._views.get(id(optimizer))
        return known.samples if known is not None and known.whereabouts == _whereabouts(parameters) else None

    def _look_again(self, optimizer: Optimizer, layout: Layout, parameters: list[Tensor]) -> list[Tensor]:
        """Samples of the parameters that can be read."""
        whole = [(place, readable(parameter)) for place, parameter in enumerate(parameters)]
        found = [(place, tensor) for place, tensor in whole if tensor is not None and tensor.numel()]
        places, tensors = [place for place, _ in found], [tensor for _, tensor in found]
        samples = _samples(tensors)
        if samples and (layout.ring is None or layout.places != places or not layout.ring.fits(samples)):
            self.flush()
            layout.describe(parameters, places, tensors, samples)
        self._views.pop(id(optimizer), None)
        if self._watch.window.every and all(map(is_plain, parameters)) and len(tensors) == len(parameters):
            kept = [part.data for part in samples]  # no views, by which the program could tell
            gone = weakref.ref(optimizer, partial(self._forget, id(optimizer)))
            self._views[id(optimizer)] = _Views(gone, _whereabouts(parameters), kept)
        return samples

    def keep(self, gauges: Gauges, now: bool = False) -> None:
        """What is to be told of the step that was just measured: at once, or with the steps that follow."""
        layout = self._layouts.known[gauges.optimizer]
        if not layout.steps:  # told already, because of a value that was not finite
            self._watch.tell(gauges)
            return
        layout.steps[-1].gauges = gauges
        if now or layout.ring is None or layout.ring.is_full:
            self.flush()

    def flush(self) -> None:
        """Tell of all steps that have not been told, in their order."""
        if may_measure():
            self._tell([event for layout in self._layouts.known.values() for event in self._told_of(layout)])

    def _tell(self, events: list[TensorGauges | Gauges]) -> None:
        for event in sorted(events, key=lambda event: event.step):
            self._watch.tell(event)

    def _exact(self, layout: Layout, parameters: list[Tensor], used: Used | None) -> tuple[list[int], Tensor] | None:
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

    def _told_of(self, layout: Layout) -> Iterator[TensorGauges | Gauges]:
        """What there is to tell of its steps."""
        steps, layout.steps = layout.steps, []
        if not steps or layout.ring is None:
            return
        watch, width = self._watch, len(layout.keys)
        columns = [layout.columns[place] for place in layout.places]
        shape = Shape(columns, width, layout.lengths, layout.sizes)
        with reading():
            numbers, gauges = table(layout.ring.reduced(), shape, [step.row for step in steps])
        told_each = len(gauges) + 1
        cut = partial(split, width, len(steps), len(gauges))
        made = watch.scalars.parts_later(numbers, cut, told_each * len(steps))
        for step, start in zip(steps, range(0, len(made), told_each), strict=True):
            told = dict(zip(gauges, made[start : start + len(gauges)], strict=True))
            yield TensorGauges(step=step.number, optimizer=layout.label, **told)
            if step.gauges is not None:
                known = step.gauges.grad_norm is not None or not (step.row.places or step.row.odd)
                norm = step.gauges.grad_norm if known else made[start + len(gauges)]
                yield msgspec.structs.replace(step.gauges, grad_norm=norm)

    def _tell_histograms(self, layout: Layout, of: str, places: list[int], samples: list[Tensor]) -> None:
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
        watch.tell(Histograms(step=watch.window.steps, of=of, optimizer=layout.label, lowest=LOWEST, counts=counts))


def _blocks(tensors: int) -> int:
    """So many of each tensor that all samples together stay small."""
    return max(_FEWEST_BLOCKS, min(BLOCKS, _MOST_SAMPLED // (WIDTH * max(1, tensors))))


def _samples(tensors: list[Tensor]) -> list[Tensor]:
    blocks = _blocks(len(tensors))
    return [sample(tensor, blocks) for tensor in tensors]


def _gradients(
    layout: Layout, ring: Ring, parameters: list[Tensor]
) -> tuple[list[int], list[Tensor], list[tuple[int, Tensor]]]:
    """Samples of the gradients there are, and whose they are; then what is read at once of those that hold other
    elements than the weight, such as sparse ones."""
    numbers, samples, odd = [], [], []
    blocks = _blocks(len(layout.places))
    for number, (place, plain) in enumerate(zip(layout.places, layout.plain, strict=True)):
        gradient = parameters[place].grad
        if gradient is None:
            continue
        if plain and type(gradient) is Tensor and gradient.layout is torch.strided:
            part = gradient if layout.sizes[number] == 1 else sample(gradient, blocks)
            if part.shape == ring.shapes[number]:
                numbers.append(number)
                samples.append(part)
                continue
        whole = readable(gradient.coalesce() if gradient.layout is torch.sparse_coo else gradient)
        if whole is not None and whole.numel():
            odd.append((number, _figures_of(whole)))
    return numbers, samples, odd


def _whereabouts(parameters: list[Tensor]) -> list[tuple[int, torch.Size]]:
    """Where they lie in memory, and how large they are."""
    return [(parameter.data_ptr(), parameter.shape) for parameter in parameters]


def _versions(parameters: list[Tensor]) -> list[int]:
    """Each grows whenever a parameter is changed, unless through `.data`."""
    try:
        return [parameter._version for parameter in parameters]
    except RuntimeError:  # tensors made under `inference_mode` have none
        return [0 if parameter.is_inference() else parameter._version for parameter in parameters]


def _figures_of(gradient: Tensor) -> Tensor:
    """Norm, largest element, shares of zeros and of what is not finite."""
    broken = torch.isfinite(gradient).logical_not_().float().mean()
    values = gradient.float()
    zero = (values == 0).float().mean()
    return torch.stack([torch.linalg.vector_norm(values), values.abs().max(), zero, broken])


def _next_of_1_2_5(number: int) -> int:
    """The next larger of 1, 2, 5, 10, 20, 50, ..."""
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > number:
                return digit * scale
        scale *= 10
