"""Reads what activation functions returned out of the autograd graph: modules and functions alike, none is patched."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect import graph
from unstuck.capture.detect.graph import nearest_parameter
from unstuck.capture.measure.gauges import MOST_STEPS
from unstuck.capture.measure.tensors import LOWEST, histograms, is_plain, may_measure, reading, rows_of, sample, short
from unstuck.capture.window import Watch
from unstuck.events import Activations, Histograms

_KINDS = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
_MOST = 64
_FURTHEST = 8
_UNITS = 256
_EXAMPLES = 32
_WINDOWS = 10
_EVERY = 16
"""Outside of sampled windows their shares, which change slowly, are read in every Nth window."""
_ENDS = {"tanh": (-0.98, 0.98), "sigmoid": (0.02, 0.98)}


class _Known(NamedTuple):
    """An activation of the graph, and how to find it again in a graph of the same shape."""

    key: tuple[int, str]
    """Two models may call their layers alike."""
    name: str
    kind: str
    unit_axis: int
    path: tuple[tuple[int, type], ...]
    """From the loss: which of its inputs each node comes from, and what it is."""


class _Look(NamedTuple):
    """What was counted of the known activations in one backward, and has not been recorded."""

    step: int
    counts: list[Tensor]
    """How often each unit of a ReLU was awake, or how often a tanh or sigmoid was saturated."""
    inputs: list[int]


class ActivationMeter:
    """Looks through the graph of a loss in measured windows, before the backward frees it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: list[_Known] = []
        self._looks: list[_Look] = []
        self._earlier: dict[tuple[int, str], Tensor] = {}
        """The counts of the last looks at each ReLU."""
        self._next_histogram = 0

    def read(self, loss: Tensor) -> None:
        """Count what the activations behind a loss are like. They are searched for in sampled windows only."""
        window = self._watch.window
        sampled = window.sampled
        if not sampled and (window.number % _EVERY or not self._known):
            return
        root = loss.grad_fn
        if root is None or not may_measure():
            return
        with reading():
            if sampled:
                self.flush()
                self._known = self._search(root)
            outputs = [output for known in self._known if (output := _follow(root, known)) is not None]
            if not outputs or len(outputs) < len(self._known):
                return  # a graph of another shape
            counted = [_counts(known, output) for known, output in zip(self._known, outputs, strict=True)]
            if self._looks and not _alike(self._looks[-1].counts, [counts for counts, _ in counted]):
                self.flush()
            look = _Look(window.steps, [counts for counts, _ in counted], [rows for _, rows in counted])
            self._looks.append(look)
            if sampled or len(self._looks) >= MOST_STEPS:
                self.flush()
            self._tell_histograms(outputs)

    def flush(self) -> None:
        """Record what was counted so far."""
        looks, self._looks = self._looks, []
        if not looks or not may_measure():
            return
        with reading():
            numbers = torch.cat([part for place in range(len(self._known)) for part in self._summed(place, looks)])
        units = [counts.numel() for counts in looks[0].counts]
        table = partial(_figures, [known.kind for known in self._known], units, [look.inputs for look in looks])
        made = self._watch.scalars.parts_later(numbers, table, 3 * len(looks))
        for number, look in enumerate(looks):
            zero, dead, saturated = made[3 * number : 3 * number + 3]
            relus = (rows for known, rows in zip(self._known, look.inputs, strict=True) if known.kind == "relu")
            self._watch.tell(
                Activations(
                    step=look.step,
                    names=tuple(known.name for known in self._known),
                    kinds=tuple(known.kind for known in self._known),
                    zero=zero,
                    dead=dead,
                    saturated=saturated,
                    inputs=min(relus, default=0),
                )
            )

    def _summed(self, place: int, looks: list[_Look]) -> tuple[Tensor, Tensor]:
        """Of one activation, for every look: the sum of its counts, and how many units no input of the last looks has
        woken."""
        known = self._known[place]
        counts = torch.stack([look.counts[place] for look in looks])
        total = counts.sum(1)
        if known.kind != "relu":
            return total, total
        earlier = self._earlier.get(known.key)
        if earlier is None or earlier.shape[1] != counts.shape[1] or earlier.device != counts.device:
            earlier = counts.new_zeros(_WINDOWS - 1, counts.shape[1])
        every = torch.cat([earlier, counts])
        if known.key not in self._earlier and len(self._earlier) >= 4 * _MOST:
            self._earlier.clear()
        self._earlier[known.key] = every[1 - _WINDOWS :].clone()
        return total, (every.unfold(0, _WINDOWS, 1).amax(-1) == 0).float().sum(1)

    def _search(self, root: graph.Node) -> list[_Known]:
        found: list[_Known] = []
        names: dict[str, int] = {}
        nodes = graph.nodes_from(root, most=3000)
        wanted = [node for node in nodes if graph.operation(node) in _KINDS][::-1]
        parents = _parents(nodes) if wanted else {}
        for node in wanted:
            kind, output = _KINDS[graph.operation(node)], graph.saved(node, "result")
            if output is None or not is_plain(output) or output.dim() < 2 or output.numel() == 0:
                continue
            weight = nearest_parameter([node], _FURTHEST)
            owner = self._watch.objects.name(weight).rpartition(".")[0] if weight is not None else ""
            name = f"{kind} after {owner}" if owner else kind
            count = names[name] = names.get(name, 0) + 1
            by_channel = output.dim() > 3 or (output.dim() == 3 and weight is not None and weight.dim() == 3)
            axis = 1 if by_channel or output.dim() == 2 else output.dim() - 1
            name = name if count == 1 else f"{name} ({count})"
            found.append(_Known((id(weight), name), name, kind, axis, _path(node, parents)))
            if len(found) >= _MOST:
                break
        return found

    def _tell_histograms(self, outputs: list[Tensor]) -> None:
        watch = self._watch
        if watch.window.number < self._next_histogram:
            return
        self._next_histogram = 2 * watch.window.number + 1
        counts = watch.scalars.row_later(histograms([sample(output) for output in outputs]), rows_of)
        watch.tell(Histograms(step=watch.window.steps, of="activations", lowest=LOWEST, counts=counts))


def _counts(known: _Known, output: Tensor) -> tuple[Tensor, int]:
    """How often each unit of a ReLU was awake, or how often a tanh or sigmoid was saturated, for how many inputs.

    Every position of an image or a sequence is an input of its own.
    """
    if known.kind != "relu":
        values = sample(output)
        low, high = _ENDS[known.kind]
        return ((values < low) | (values > high)).float().sum().reshape(1), values.numel()
    step = max(1, output.shape[0] // (_EXAMPLES if output.dim() == 2 else _EXAMPLES // 8))
    units = output[::step] if step > 1 else output
    if output.dim() > 2:
        units = units.movedim(known.unit_axis, -1).flatten(0, -2)
    if units.shape[1] > _UNITS:
        units = units[:, :_UNITS]
    # What a ReLU returns is never negative. Summing signs takes a tenth of the time of counting.
    return units.sign().sum(0, dtype=torch.float32), units.shape[0]


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return [counts.shape for counts in one] == [counts.shape for counts in other]


def _figures(
    kinds: list[str], units: list[int], inputs: list[list[int]], numbers: tuple[float, ...]
) -> list[tuple[float | None, ...]]:
    """Shares of zeros, of dead units and of saturated outputs for every look, one column per activation."""
    looks, made = len(inputs), []
    for look, rows in enumerate(inputs):
        zero, dead, saturated = [], [], []
        for place, kind in enumerate(kinds):
            some, never = numbers[(2 * place) * looks + look], numbers[(2 * place + 1) * looks + look]
            share = some / max(1, rows[place] * units[place])
            is_relu = kind == "relu"
            zero.append(1 - share if is_relu else 0.0)
            dead.append(never / max(1, units[place]) if is_relu else math.nan)
            saturated.append(math.nan if is_relu else share)
        made += [short(zero), short(dead), short(saturated)]
    return made


def _parents(nodes: list[graph.Node]) -> dict[graph.Node, tuple[graph.Node, int]]:
    """By what, and as which of its inputs, each node is used first."""
    parents: dict[graph.Node, tuple[graph.Node, int]] = {}
    for node in nodes:
        for place, (child, _) in enumerate(node.next_functions):
            if child is not None:
                parents.setdefault(child, (node, place))
    return parents


def _path(node: graph.Node, parents: dict[graph.Node, tuple[graph.Node, int]]) -> tuple[tuple[int, type], ...]:
    """The way to a node from the one that nobody uses."""
    path: list[tuple[int, type]] = []
    while node in parents:
        parent, place = parents[node]
        path.append((place, type(node)))
        node = parent
    return tuple(reversed(path))


def _follow(root: graph.Node, known: _Known) -> Tensor | None:
    """What an activation returned this time; None if the graph has changed."""
    node = root
    for place, kind in known.path:
        children = node.next_functions
        node = children[place][0] if place < len(children) else None
        if type(node) is not kind:
            return None
    output = graph.saved(node, "result")
    return output if output is not None and output.numel() and output.dim() > known.unit_axis else None
