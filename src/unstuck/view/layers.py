"""A run layer by layer, in the order in which layers ran: matrices over its steps, and histograms over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from unstuck.events import Activations, Histograms, TensorGauges, TensorsNamed
from unstuck.record import Record
from unstuck.view.thin import Matrix, Number, columns, packed

MOST_CELLS = 150_000
"""Of all matrices of a page together."""
MOST_COLUMNS = 400
FEWEST_COLUMNS = 24
LOOKED_AT = 6
"""Measured steps of a column, at most: the last ones, of all optimizers that take turns."""
MOST_ROWS = 1500
"""Tensors of a page; of more, those with two or more dimensions come first."""
MOST_RIDGES = 14
MOST_BINS = 220_000
"""Of all histograms of a page together."""


OfTensors = Callable[[TensorGauges], Sequence[Number]]
OfActivations = Callable[[Activations], Sequence[Number]]


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row: a parameter."""

    name: str
    layer: str
    kind: str = ""
    size: int = 0
    dimensions: int = 0
    group: int = 0
    optimizer: str = ""


class Heatmap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One quantity of all rows over the steps."""

    name: str
    title: str
    healthy: str
    low: float
    high: float
    """The band that is healthy."""
    centre: float | None = None
    """Where the colours turn, if they do."""
    colours: str = ""
    """What the colours say."""
    of: str = "tensors"
    """Or `activations`."""
    steps: list[int]
    matrix: Matrix

    def last(self, row: int) -> Number:
        """The last number of a row."""
        cells = self.matrix.row(row)
        return next((value for value in reversed(cells) if value is not None), None)


class Ridges(msgspec.Struct, frozen=True):
    """How sizes were distributed at some steps: counts of |x| by powers of two, the first bin ending at 2^lowest."""

    steps: list[int]
    lowest: int
    zero: list[float]
    """The share that was exactly 0."""
    counts: list[list[int]]
    """In thousandths of all values."""


class Layers(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is known by layer."""

    tensors: list[Tensor] = []
    activations: list[str] = []
    heatmaps: list[Heatmap] = []
    weights: dict[int, Ridges] = {}
    """By the number of the row."""
    gradients: dict[int, Ridges] = {}
    outputs: dict[int, Ridges] = {}
    """Of activations."""
    left_out: int = 0
    """Tensors that are not shown."""


def layers(record: Record) -> Layers:
    """What the sampled measurements of a record show."""
    table = _Table(record)
    rows = len(table.tensors) * 3 + len(table.activations) * 2
    most = max(FEWEST_COLUMNS, min(MOST_COLUMNS, MOST_CELLS // max(1, rows)))
    ridges = _Histograms(record, table)
    return Layers(
        tensors=table.tensors,
        activations=table.activations,
        heatmaps=[*_of_tensors(table, most), *_of_activations(table, most)],
        weights=ridges.of("weights"),
        gradients=ridges.of("gradients"),
        outputs=ridges.of("activations"),
        left_out=table.left_out,
    )


class _Table:
    """The rows, and the events that hold numbers for them."""

    def __init__(self, record: Record) -> None:
        self._named: dict[str, TensorsNamed] = {}
        self._rows: dict[tuple[str, str], int] = {}
        self._rows_of: dict[int, list[int | None]] = {}
        self.tensors: list[Tensor] = []
        self.activations: list[str] = []
        self._activation_rows: dict[str, int] = {}
        self.gauges: list[tuple[TensorGauges, TensorsNamed]] = []
        self.functions: list[Activations] = []
        wanted = _wanted(record)
        named = {key for event in record.of(TensorsNamed) for key in _keys(event)}
        self.left_out = len(named) - len(wanted)
        for event in record.of(TensorsNamed, TensorGauges, Activations):
            if isinstance(event, TensorsNamed):
                self._add(event, wanted)
            elif isinstance(event, TensorGauges) and event.optimizer in self._named:
                self.gauges.append((event, self._named[event.optimizer]))
            elif isinstance(event, Activations):
                self._add_functions(event)

    def _add(self, event: TensorsNamed, wanted: set[tuple[str, str]]) -> None:
        self._named[event.optimizer] = event
        for index, key in enumerate(_keys(event)):
            if key in wanted and key not in self._rows:
                self._rows[key] = len(self.tensors)
                name = event.names[index]
                layer = name.rpartition(".")[0] or name
                self.tensors.append(
                    Tensor(
                        name,
                        layer,
                        event.kinds[index],
                        event.sizes[index],
                        event.dimensions[index],
                        event.groups[index],
                        event.optimizer,
                    )
                )

    def _add_functions(self, event: Activations) -> None:
        self.functions.append(event)
        for name in event.names:
            if name not in self._activation_rows and len(self.activations) < MOST_ROWS:
                self._activation_rows[name] = len(self.activations)
                self.activations.append(name)

    def rows_of(self, event: TensorsNamed) -> Sequence[int | None]:
        """The row of each column of its events."""
        if id(event) not in self._rows_of:
            self._rows_of[id(event)] = [self._rows.get(key) for key in _keys(event)]
        return self._rows_of[id(event)]

    def function_rows(self, event: Activations) -> list[int | None]:
        """The same for activations."""
        return [self._activation_rows.get(name) for name in event.names]

    def named(self, optimizer: str) -> TensorsNamed | None:
        """The columns of an optimizer as they were last."""
        return self._named.get(optimizer)


def _keys(event: TensorsNamed) -> list[tuple[str, str]]:
    return [(event.optimizer, name) for name in event.names]


def _wanted(record: Record) -> set[tuple[str, str]]:
    """All parameters, or the largest ones of a model with thousands."""
    known: dict[tuple[str, str], tuple[int, int]] = {}
    for event in record.of(TensorsNamed):
        for key, dimensions, size in zip(_keys(event), event.dimensions, event.sizes, strict=True):
            known[key] = (-min(dimensions, 2), -size)
    return set(sorted(known, key=lambda key: known[key])[:MOST_ROWS])


def _of_tensors(table: _Table, most: int) -> Iterator[Heatmap]:
    quantities: tuple[tuple[str, str, str, tuple[float, float, float | None], OfTensors], ...] = (
        (
            "update",
            "Update : weight",
            "About 0.001 in every layer, from 0.0001 to 0.01.",
            (1e-4, 1e-2, 1e-3),
            lambda event: event.update_ratio,
        ),
        (
            "ratio",
            "Gradient : weight",
            "About 0.001 to 0.01, alike from layer to layer; above 0.1 updates are too large for the weights.",
            (1e-3, 1e-2, None),
            lambda event: _ratios(event.grad_norm, event.weight_norm),
        ),
        (
            "gradient",
            "Gradient norm",
            "Of one order of magnitude in all layers. Early layers a thousand times below late ones do not learn.",
            (1e-2, 1e1, None),
            lambda event: event.grad_norm,
        ),
    )
    for name, title, healthy, (low, high, centre), read in quantities:
        found = _Grid(len(table.tensors))
        for event, named in table.gauges:
            found.add(event.step, table.rows_of(named), partial(read, event))
        if found.has_numbers:
            steps, rows = found.grouped(most)
            yield Heatmap(
                name=name,
                title=title,
                healthy=healthy,
                low=low,
                high=high,
                centre=centre,
                colours="Deep blue moves too little, deep orange too much." if centre else "",
                steps=steps,
                matrix=packed(rows, log=True),
            )


def _ratios(ones: Sequence[Number], others: Sequence[Number]) -> list[Number]:
    return [one / other if one is not None and other else None for one, other in zip(ones, others, strict=False)]


def _of_activations(table: _Table, most: int) -> Iterator[Heatmap]:
    quantities: tuple[tuple[str, str, str, float, OfActivations], ...] = (
        (
            "dead",
            "Dead units",
            "A modest share that does not grow. A unit that is 0 for every input gets no gradient and cannot recover.",
            0.2,
            lambda event: event.dead,
        ),
        (
            "saturated",
            "Saturated outputs",
            "Few, and not more and more: at the ends of tanh and sigmoid there is almost no gradient.",
            0.2,
            lambda event: event.saturated,
        ),
    )
    for name, title, healthy, high, read in quantities:
        found = _Grid(len(table.activations))
        for event in table.functions:
            found.add(event.step, table.function_rows(event), partial(read, event))
        if found.has_numbers:
            steps, rows = found.grouped(most)
            yield Heatmap(
                name=name,
                title=title,
                healthy=healthy,
                low=0.0,
                high=high,
                of="activations",
                steps=steps,
                matrix=packed(rows, log=False),
            )


class _Grid:
    """Numbers by row and step. In a step in which an optimizer was not measured, its rows keep their last number."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._read: dict[int, list[tuple[Sequence[int | None], Callable[[], Sequence[Number]]]]] = defaultdict(list)

    def add(self, step: int, rows: Sequence[int | None], read: Callable[[], Sequence[Number]]) -> None:
        """One event. It is read only if it is among those that are shown."""
        self._read[step].append((rows, read))

    @property
    def has_numbers(self) -> bool:
        """Is there any number in it?"""
        return any(value is not None for events in self._read.values() for _, read in events for value in read())

    def grouped(self, most: int) -> tuple[list[int], list[list[Number]]]:
        """The first step of each group of columns, and for each row the middle one of its last numbers there."""
        steps = sorted(self._read)
        groups = columns(len(steps), most)
        last: list[Number] = [None] * self._rows
        rows: list[list[Number]] = [[] for _ in range(self._rows)]
        for group in groups:
            found: dict[int, list[Number]] = defaultdict(list)
            for index in group[-LOOKED_AT:]:
                for places, read in self._read[steps[index]]:
                    for row, value in zip(places, read(), strict=False):
                        if row is not None:
                            found[row].append(value)
            for row, values in found.items():
                known = sorted(value for value in values if value is not None)
                last[row] = known[len(known) // 2] if known else None
            for row, value in enumerate(last):
                rows[row].append(value)
        return [steps[group[0]] for group in groups], rows


class _Histograms:
    """Histograms of a record, thinned to what a page may hold."""

    def __init__(self, record: Record, table: _Table) -> None:
        self._found: dict[str, dict[int, list[tuple[int, int, tuple[int, ...]]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        functions: Activations | None = None
        for event in record.of(Histograms, Activations):
            if isinstance(event, Activations):
                functions = event
                continue
            assert isinstance(event, Histograms)
            if event.of == "activations":
                rows: Sequence[int | None] = table.function_rows(functions) if functions is not None else []
            else:
                named = table.named(event.optimizer)
                rows = table.rows_of(named) if named is not None else []
            for row, counts in zip(rows, event.counts, strict=False):
                if row is not None and any(counts):
                    self._found[event.of][row].append((event.step, event.lowest, counts))
        rows_in_all = sum(len(by_row) for by_row in self._found.values())
        # About thirty bins of each are not empty.
        self._most = max(4, min(MOST_RIDGES, MOST_BINS // (30 * max(1, rows_in_all))))

    def of(self, what: str) -> dict[int, Ridges]:
        """By row."""
        return {row: self._ridges(found) for row, found in sorted(self._found[what].items())}

    def _ridges(self, found: Sequence[tuple[int, int, tuple[int, ...]]]) -> Ridges:
        chosen = [found[group[-1]] for group in columns(len(found), self._most - 1)]
        if chosen[0] is not found[0]:
            chosen.insert(0, found[0])
        used = [index for _, _, counts in chosen for index, count in enumerate(counts) if count and index]
        first, last = min(used, default=1), max(used, default=1)
        totals = [sum(counts) for _, _, counts in chosen]
        return Ridges(
            steps=[step for step, _, _ in chosen],
            lowest=chosen[0][1] + first,
            zero=[round(counts[0] / total, 4) for (_, _, counts), total in zip(chosen, totals, strict=True)],
            counts=[
                [round(1000 * count / total) for count in counts[first : last + 1]]
                for (_, _, counts), total in zip(chosen, totals, strict=True)
            ],
        )
