"""Measures every parameter of an optimizer across its step: gradient, weight, and how far the step moved it.

In the middle of a training every small operation takes ten times as long as it would alone, because its code has left
the caches. So a step only copies samples of its tensors into a `Ring`; the arithmetic is done for many steps at once
(`Ring.reduced`, `table`). A `Layout` says which tensor is in which column, and `TensorMeter` is what steps call.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.tensors import (
    BLOCKS,
    HALVES,
    LOWEST,
    WIDTH,
    histograms,
    is_plain,
    may_measure,
    norms,
    readable,
    reading,
    rounded,
    rows_of,
    sample,
    short,
)
from unstuck.capture.objects import parameters_of
from unstuck.capture.torch_hooks.internals import foreach_copy
from unstuck.capture.window import Watch
from unstuck.events import Gauges, Histograms, TensorGauges, TensorsNamed

MOST_STEPS = 64
MOST_HELD = 2**19
"""Elements of the gradients; of the weights twice as many."""
FIGURES = ("weight", "change", "gradient", "largest", "present", "moved", "broken")
"""What is computed of every sample: three norms, the largest element of the gradient, how many elements of it are not
zero, where weights of half precision may stand still how many the step has changed, and where some elements of a
gradient are not finite how many."""
_FEW = 256
"""Tensors that are reduced one by one, which is more exact; more of them in one go, which is faster."""

# The norms of order 0 and infinity, and counting, take five to ten times as long as these do.
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda part: torch.linalg.vector_norm(part, dim=1),
    "max": lambda part: part.amax(1),
    "sum": lambda part: part.sum(1),
}


class Reduced(NamedTuple):
    """The `FIGURES`: those that there are always, and two that are only computed where they may tell something."""

    always: Tensor
    moved: Tensor | None
    broken: Tensor | None


class Ring:
    """Room for the samples of a few steps, for tensors whose samples have these shapes.

    Each step has a copy of the weights before and after it; the second may be the first of the next step.
    """

    def __init__(self, samples: Sequence[Tensor]) -> None:
        self.shapes = [part.shape for part in samples]
        self._lengths = [part.numel() for part in samples]
        width = sum(self._lengths)
        self.steps = max(1, min(MOST_STEPS, MOST_HELD // max(1, width)))
        """How many it holds."""
        self._halves = any(part.dtype in HALVES for part in samples)
        wide = torch.float64 if any(part.dtype is torch.float64 for part in samples) else torch.float32
        with torch.inference_mode(False):  # what is made inside could not be written to outside
            self._weights = torch.zeros(2 * self.steps + 1, width, dtype=wide, device=samples[0].device)
            self._gradients = self._weights.new_zeros(self.steps, width)
        self._views: dict[tuple[bool, int], list[Tensor]] = {}
        self._before: list[int] = []
        """For each step the row of the weights before it; those after it are in the next one."""
        self._last: int | None = None
        """The row of the newest weights."""
        self._open = False
        """Has a step begun that has not ended?"""

    def fits(self, samples: Sequence[Tensor]) -> bool:
        """Are these of the shapes it was made for?"""
        return [part.shape for part in samples] == self.shapes

    def begin(self, weights: Sequence[Tensor], compare: bool) -> bool:
        """Copy the weights before a step; False if they turn out to be others than after the last one."""
        if self._open:  # by a step that raised
            self._last = self._before[-1] + 1 if self._before else None
        row = 0 if self._last is None else self._last + 1
        self._put(self._slots(True, row), weights)
        same = not compare or self._last is None or torch.equal(self._weights[row], self._weights[self._last])
        self._last, self._open = row, True
        return same

    def end(self, weights: Sequence[Tensor], gradients: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Copy the weights after a step, and the gradients of some tensors. Without `begin` the step began with the
        weights that the last one ended with."""
        assert self._last is not None
        slots = self._slots(False, len(self._before))
        if len(owners) < len(slots):
            slots = [slots[owner] for owner in owners]
        self._before.append(self._last)
        self._last, self._open = self._last + 1, False
        self._put([*self._slots(True, self._last), *slots], [*weights, *gradients])

    @property
    def is_full(self) -> bool:
        """Is there no room for another step?"""
        return len(self._before) >= self.steps

    def reduced(self) -> Reduced:
        """The `FIGURES` of every tensor at each step. The steps are forgotten."""
        rows, self._before = self._before, []
        first, count = rows[0], len(rows)
        in_a_row = rows == list(range(first, first + count))
        before = self._weights[first : first + count] if in_a_row else self._weights[rows]
        after = self._weights[first + 1 : first + count + 1] if in_a_row else self._weights[[row + 1 for row in rows]]
        change, gradients = after - before, self._gradients[:count]
        found = [self._each("norm", before), self._each("norm", change), self._each("norm", gradients)]
        broken = self._broken(gradients, found[-1])
        found.append(self._each("max", gradients.abs_()))
        found.append(self._each("sum", gradients.sign_()))
        moved = self._each("sum", change.sign_().abs_()) if self._halves else None
        if self._last:
            self._weights[0].copy_(self._weights[self._last])
            self._last = 0
        return Reduced(torch.stack(found), moved, broken)

    def _broken(self, gradients: Tensor, norms: Tensor) -> Tensor | None:
        """How many elements are not finite: counted only if there are any, unless that must be asked of a device."""
        if norms.is_cpu and bool(torch.isfinite(norms).all()):
            return None
        return self._each("sum", torch.isfinite(gradients).logical_not_().to(gradients.dtype))

    def _each(self, how: str, held: Tensor) -> Tensor:
        """Reduce every sample of every step to one number."""
        if len(self._lengths) <= _FEW:
            reduce = _REDUCTIONS[how]
            return torch.stack([reduce(part) for part in torch.split_with_sizes(held, self._lengths, 1)])
        lengths = torch.tensor(self._lengths, device=held.device).repeat(len(held))
        values = (held.square() if how == "norm" else held).reshape(-1)
        found = torch.segment_reduce(values, "max" if how == "max" else "sum", lengths=lengths)
        return (found.sqrt() if how == "norm" else found).view(len(held), -1).T

    def _put(self, slots: list[Tensor], samples: Sequence[Tensor]) -> None:
        if samples:
            foreach_copy(slots, list(samples))

    def _slots(self, weights: bool, row: int) -> list[Tensor]:
        """Where the samples of one row go."""
        known = self._views.get((weights, row))
        if known is None:
            parts = torch.split_with_sizes((self._weights if weights else self._gradients)[row], self._lengths)
            known = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
            if len(known) <= _FEW:
                self._views[(weights, row)] = known
        return known


# From what a ring was reduced to, the gauges.

GAUGES = ("grad_norm", "grad_max", "grad_zero", "weight_norm", "update_ratio", "unmoved")
RARE = "grad_nonfinite"
"""Recorded after them, where a gradient may have elements that are not finite."""
OF_GRADIENT = [0, 1, 2, 5, 6]
"""Places of those that a step without a gradient does not have."""
OF_ODD = [0, 1, 2, 6]
"""Places of those that `Row.odd` knows."""


class Shape(NamedTuple):
    """What is the same for all steps: of each tensor its column, the length of its sample and how many times larger
    it is."""

    columns: list[int]
    width: int
    lengths: list[int]
    sizes: list[float]


class Row(NamedTuple):
    """The gradients of one step: which of the tensors have one in the ring, and what else is known of some of them."""

    places: Sequence[int]
    exact: tuple[list[int], Tensor] | None
    """Norms of whole gradients, and whose they are."""
    odd: Sequence[tuple[int, Tensor]]
    """Norm, largest element, shares of zeros and of what is not finite, of those that were not put into the ring."""


def table(reduced: Reduced, shape: Shape, rows: Sequence[Row]) -> tuple[Tensor, tuple[str, ...]]:
    """Gauges of every row, column by column, followed by the norm of all gradients of each row, NaN where nothing was
    measured; and which gauges these are."""
    figures = reduced.always
    weight, change, norm, largest, present = figures
    lengths = figures.new_tensor(shape.lengths)[:, None]
    roots = figures.new_tensor(shape.sizes).sqrt_()[:, None]
    nothing = figures.new_full((), math.nan)
    ratio = torch.where(weight > 0, change / weight, nothing)
    moved = reduced.moved
    unmoved = torch.where(present > 0, (1 - moved / present).clamp_min(0), nothing) if moved is not None else nothing
    made = [norm * roots, largest, 1 - present / lengths, weight * roots, ratio, unmoved.expand_as(weight)]
    names: tuple[str, ...] = GAUGES
    if reduced.broken is not None or any(row.odd for row in rows):
        made.append(torch.zeros_like(weight) if reduced.broken is None else reduced.broken / lengths)
        names = (*GAUGES, RARE)
    whole = torch.stack(made)
    for number, row in enumerate(rows):
        if len(row.places) < len(shape.lengths) or row.exact is not None:
            _correct(whole[:, :, number], row)
    placed = figures.new_full((len(names), shape.width, len(rows)), math.nan)
    placed[:, shape.columns] = whole
    totals = placed[0].square().nansum(0).sqrt()
    return torch.cat([placed.permute(2, 0, 1).reshape(-1), totals]), names


def _correct(own: Tensor, row: Row) -> None:
    """Where the ring holds nothing of this step, or better is known."""
    if len(row.places) < own.shape[1]:
        absent = sorted(set(range(own.shape[1])) - set(row.places))
        for gauge in (place for place in OF_GRADIENT if place < len(own)):
            own[gauge, absent] = math.nan
    for place, figures in row.odd:
        own[OF_ODD, place] = figures.to(own)
    if row.exact is not None:
        own[0, row.exact[0]] = row.exact[1].to(own)


def split(width: int, rows: int, gauges: int, numbers: tuple[float, ...]) -> list[Any]:
    """Row by row, the columns of so many gauges and the norm of all gradients."""
    numbers = _rounded(numbers)
    made: list[Any] = []
    for row in range(rows):
        for start in range(row * gauges * width, (row + 1) * gauges * width, width):
            values = numbers[start : start + width]
            made.append(values if math.isfinite(sum(values)) else tuple(map(_if_finite, values)))
        made.append(numbers[rows * gauges * width + row])
    return made


def _rounded(numbers: tuple[float, ...]) -> tuple[float, ...]:
    if not may_measure():  # numbers of a device arrive whenever they do
        return tuple(math.nan if value is None else value for value in short(numbers))
    with reading():
        return tuple(rounded(torch.tensor(numbers, dtype=torch.float64, device="cpu")).tolist())


def _if_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# The parameters of each optimizer: their names, their columns and the room for samples.

_SHARE = 8 * 2**20
"""Each time so many bytes were written, the gauges come half as often."""
_BYTES = 48
"""What the gauges of one tensor take in the record, roughly."""
LONG_AGO = -2
"""A window that no other follows."""
_MOST = 8
"""Of a program that builds optimizer after optimizer only the last are remembered."""


class Step:
    """A step that was measured and has not been recorded."""

    def __init__(self, number: int, row: Row) -> None:
        self.number = number
        self.row = row
        self.gauges: Gauges | None = None
        """What is to be recorded of this step together with the gauges of its tensors."""


class Layout:
    """The parameters of one optimizer, their columns and their samples."""

    def __init__(self, label: str, keys: tuple[int, ...], known: int) -> None:
        self.label = label
        self.keys = keys
        self.columns: list[int] = []
        self.known = known
        """How many modules had been seen to run when it was made."""
        self.measured = self.bytes = 0
        self.next_histogram = 0
        self.elements = 0
        self.places: list[int] = []
        """Which of the parameters can be read; then, for each of these:"""
        self.lengths: list[int] = []
        self.sizes: list[float] = []
        """How many times larger the tensor is than its sample."""
        self.plain: list[bool] = []
        """Is it what `is_plain` says? Then so is its gradient, if that is dense."""
        self.ring: Ring | None = None
        self.window = LONG_AGO
        """When it was last measured."""
        self.restless = False
        """Do the weights change between the steps too, or unevenly, or is that unknown without waiting?"""
        self.versions: list[int] = []
        """Count the changes of each parameter, up to the last step."""
        self.by_step: list[int] = []
        """How many of them a step makes."""
        self.in_a_row = False
        """Did the last step begin where the one before it had ended?"""
        self.steps: list[Step] = []

    @property
    def is_calm(self) -> bool:
        """Is all that changes the weights known to be the steps, so that each begins where the last one ended?"""
        is_told_always = self.bytes < _SHARE
        return self.in_a_row and is_told_always and not self.restless

    def count(self) -> bool:
        """Count a step; True if it is to be recorded. Of a model with many tensors ever fewer are, so that the record
        stays within its budget."""
        self.measured += 1
        wanted = self.measured % (1 << self.bytes // _SHARE) == 0
        self.bytes += _BYTES * len(self.keys) * wanted
        return wanted

    def describe(
        self, parameters: list[Tensor], places: list[int], tensors: list[Tensor], samples: list[Tensor]
    ) -> None:
        """Note what the tensors are like that stand for some of the parameters, and make room for their samples."""
        self.places = places
        self.plain = [is_plain(parameters[place]) for place in places]
        self.lengths = [part.numel() for part in samples]
        self.sizes = [whole.numel() / length for whole, length in zip(tensors, self.lengths, strict=True)]
        self.elements = sum(whole.numel() for whole in tensors)
        self.ring = Ring(samples)


class Layouts:
    """Those of the optimizers that stepped last. `flush` is called before one is forgotten."""

    def __init__(self, watch: Watch, flush: Callable[[], None]) -> None:
        self._watch = watch
        self._flush = flush
        self.known: dict[str, Layout] = {}

    def of(self, optimizer: Optimizer, parameters: list[Tensor]) -> Layout:
        """The layout of an optimizer that holds these."""
        label = self._watch.objects.optimizer(optimizer)
        keys, known = tuple(map(id, parameters)), self._watch.objects.order.count
        layout = self.known.get(label)
        if layout is None or layout.keys != keys or (layout.known != known and layout.measured < 3):
            fresh = Layout(label, keys, known)
            if layout is not None:
                self._flush()
                fresh.measured, fresh.bytes, fresh.next_histogram = layout.measured, layout.bytes, layout.next_histogram
            fresh.columns = self._name(label, optimizer, parameters)
            if len(self.known) >= _MOST:
                self._flush()
                del self.known[next(iter(self.known))]
            layout = self.known[label] = fresh
        return layout

    def _name(self, label: str, optimizer: Optimizer, parameters: list[Tensor]) -> list[int]:
        """Record the names in the order of execution; the column of each parameter."""
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
                step=self._watch.window.steps,
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
                depth = self._watch.objects.order.of(module)
                for own, parameter in module._parameters.items():
                    if parameter is not None:
                        whole = f"{name}.{own}" if name else own
                        found.setdefault(id(parameter), (whole, type(module).__name__, depth))
        return found


# What steps call.

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
    """Copies samples of the weights around a step, in measured windows, and records what a few steps have shown."""

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
        """What is to be recorded of the step that was just measured: at once, or with the steps that follow."""
        layout = self._layouts.known[gauges.optimizer]
        if not layout.steps:  # recorded already, because of a value that was not finite
            self._watch.tell(gauges)
            return
        layout.steps[-1].gauges = gauges
        if now or layout.ring is None or layout.ring.is_full:
            self.flush()

    def flush(self) -> None:
        """Record all steps that have not been recorded, in their order."""
        if may_measure():
            self._tell([event for layout in self._layouts.known.values() for event in self._events_of(layout)])

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

    def _events_of(self, layout: Layout) -> Iterator[TensorGauges | Gauges]:
        """The events of its steps, which are forgotten."""
        steps, layout.steps = layout.steps, []
        if not steps or layout.ring is None:
            return
        watch, width = self._watch, len(layout.keys)
        columns = [layout.columns[place] for place in layout.places]
        shape = Shape(columns, width, layout.lengths, layout.sizes)
        with reading():
            numbers, gauges = table(layout.ring.reduced(), shape, [step.row for step in steps])
        per_step = len(gauges) + 1
        cut = partial(split, width, len(steps), len(gauges))
        made = watch.scalars.parts_later(numbers, cut, per_step * len(steps))
        for step, start in zip(steps, range(0, len(made), per_step), strict=True):
            values = dict(zip(gauges, made[start : start + len(gauges)], strict=True))
            yield TensorGauges(step=step.number, optimizer=layout.label, **values)
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
