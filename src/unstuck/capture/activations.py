"""Reads what activation functions returned out of the autograd graph: modules and functions alike, none is patched."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture import graph
from unstuck.capture.broken import nearest_parameter
from unstuck.capture.samples import LOWEST, histograms, rows_of, sample, short
from unstuck.capture.tensors import is_plain, may_measure, reading
from unstuck.capture.watch import Watch
from unstuck.events import Activations, Histograms

_KINDS = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
_MOST = 64
_FURTHEST = 8
_UNITS = 256
_EXAMPLES = 32
_WINDOWS = 10
_ENDS = {"tanh": (-0.98, 0.98), "sigmoid": (0.02, 0.98)}


class _Found(NamedTuple):
    key: tuple[int, str]
    """Two models may call their layers alike."""
    name: str
    kind: str
    output: Tensor
    unit_axis: int


class ActivationMeter:
    """Looks through the graph of a loss in detailed windows, before the backward frees it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._alive: dict[tuple[int, str], deque[tuple[float, ...]]] = {}
        self._next_histogram = 0

    def read(self, loss: Tensor) -> None:
        """Tell what the activations behind a loss are like."""
        if loss.grad_fn is None or not may_measure():
            return
        with reading():
            found = self._activations(loss.grad_fn)
            if not found:
                return
            counts = [_counts(each) for each in found]
            layout = [
                (each.key, each.kind, rows, len(count)) for each, (count, rows) in zip(found, counts, strict=True)
            ]
            numbers = torch.cat([count.float() for count, _ in counts])
            figures = self._watch.scalars.parts_later(numbers, partial(self._figures, layout), 3)
            self._watch.tell(
                Activations(
                    step=self._watch.clock.steps,
                    names=tuple(each.name for each in found),
                    kinds=tuple(each.kind for each in found),
                    zero=figures[0],
                    dead=figures[1],
                    saturated=figures[2],
                    inputs=min((rows for _, kind, rows, _ in layout if kind == "relu"), default=0),
                )
            )
            self._tell_histograms(found)

    def _activations(self, root: graph.Node) -> list[_Found]:
        found: list[_Found] = []
        names: dict[str, int] = {}
        for node in reversed(graph.nodes_from(root, most=3000)):
            kind = _KINDS.get(graph.operation(node))
            output = graph.saved(node, "result") if kind else None
            if kind is None or output is None or not is_plain(output) or output.dim() < 2 or output.numel() == 0:
                continue
            weight = nearest_parameter([node], _FURTHEST)
            owner = self._watch.objects.name(weight).rpartition(".")[0] if weight is not None else ""
            name = f"{kind} after {owner}" if owner else kind
            count = names[name] = names.get(name, 0) + 1
            by_channel = output.dim() > 3 or (output.dim() == 3 and weight is not None and weight.dim() == 3)
            axis = 1 if by_channel or output.dim() == 2 else output.dim() - 1
            name = name if count == 1 else f"{name} ({count})"
            found.append(_Found((id(weight), name), name, kind, output, axis))
            if len(found) >= _MOST:
                break
        return found

    def _figures(
        self, layout: list[tuple[tuple[int, str], str, int, int]], numbers: tuple[float, ...]
    ) -> list[tuple[float | None, ...]]:
        """Shares of zeros, of dead units and of saturated outputs, one column per activation."""
        zero, dead, saturated, start = [], [], [], 0
        for key, kind, rows, units in layout:
            counts, start = numbers[start : start + units], start + units
            share = sum(counts) / max(1, rows * units)
            is_relu = kind == "relu"
            zero.append(1 - share if is_relu else 0.0)
            dead.append(self._dead(key, counts) if is_relu else math.nan)
            saturated.append(math.nan if is_relu else share)
        return [short(zero), short(dead), short(saturated)]

    def _dead(self, key: tuple[int, str], awake: tuple[float, ...]) -> float:
        """The share of units that no input of the last windows woke."""
        if key not in self._alive and len(self._alive) >= 4 * _MOST:
            self._alive.clear()
        history = self._alive.setdefault(key, deque(maxlen=_WINDOWS))
        if history and len(history[0]) != len(awake):
            history.clear()
        history.append(awake)
        return sum(not any(counts) for counts in zip(*history, strict=True)) / max(1, len(awake))

    def _tell_histograms(self, found: list[_Found]) -> None:
        watch = self._watch
        if watch.clock.windows < self._next_histogram:
            return
        self._next_histogram = 2 * watch.clock.windows + 1
        counts = watch.scalars.row_later(histograms([sample(each.output) for each in found]), rows_of)
        watch.tell(Histograms(step=watch.clock.steps, of="activations", lowest=LOWEST, counts=counts))


def _counts(found: _Found) -> tuple[Tensor, int]:
    """How often each unit of a ReLU was awake, or a tanh or sigmoid was saturated, and for how many inputs.

    Every position of an image or a sequence is an input of its own.
    """
    if found.kind != "relu":
        values = sample(found.output)
        low, high = _ENDS[found.kind]
        return ((values < low) | (values > high)).sum().reshape(1), values.numel()
    output = found.output.detach()
    examples = _EXAMPLES if output.dim() == 2 else _EXAMPLES // 8
    some = output[:: max(1, output.shape[0] // examples)]
    units = some.movedim(found.unit_axis, -1).flatten(0, -2)[:, :_UNITS]
    return (units > 0).sum(0), units.shape[0]
