"""A model's loss as a function of how far its weights went along each way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unstuck.findings.surface import Array
from unstuck.surface.field import ELEMENTS_AT_ONCE, Field, field_of
from unstuck.surface.loss import Loss
from unstuck.surface.weights.folded import Folded, Unfoldable

Weights = Mapping[str, Tensor]
FIRST_CHUNK = 16
MUCH_SLOWER = 1.25
"""Than the best chunk: one that is even larger is not tried."""
LARGEST_ACTIVATIONS = 16
"""How many times larger than its weights and batch a model's activations are taken to be, to bound the memory."""


def field_along(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Any,
    ways: Sequence[Weights],
    samples: Array,
    exact: bool,
) -> Field:
    """The loss by the distances along the ways, found by folding, mapping or running the model point by point."""
    start = {name: weight.detach() for name, weight in model.named_parameters() if name in ways[0]}
    loss = _along(model, loss_fn, inputs, targets, start, ways, exact)
    dtype = next(iter(start.values())).dtype
    return field_of(loss, samples, dtype, _folded(model, loss_fn, inputs, targets, ways, exact))


def _folded(
    model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any, targets: Any, ways: Sequence[Weights], exact: bool
) -> Callable[..., Tensor] | None:
    try:
        folded = Folded(model, loss_fn, inputs, targets, ways)
    except Unfoldable:
        return None
    return torch.set_grad_enabled(exact)(folded.__call__)


def _along(
    model: nn.Module,
    loss_fn: Callable[..., Tensor],
    inputs: Any,
    targets: Any,
    start: Weights,
    ways: Sequence[Weights],
    exact: bool,
) -> Loss:
    """The loss as a function of how far one went along each way; without a graph unless it is wanted."""
    buffers = dict(model.named_buffers())
    shift = _shifted(start, ways)

    def evaluate(*distances: Tensor) -> Tensor:
        # Fresh buffers for every point: a batch norm that counts its batches must not see those of other points.
        with torch.set_grad_enabled(exact):
            state = {**shift(distances), **{name: buffer.clone() for name, buffer in buffers.items()}}
            arguments = inputs if isinstance(inputs, tuple) else (inputs,)
            return loss_fn(torch.func.functional_call(model, state, arguments), targets)

    size = sum(weight.numel() for weight in start.values()) + (inputs.numel() if isinstance(inputs, Tensor) else 0)
    return Loss(type(model).__name__, evaluate, None, LARGEST_ACTIVATIONS * size)


def _shifted(start: Weights, ways: Sequence[Weights]) -> Callable[[Sequence[Tensor]], Weights]:
    """All weights are moved as one vector, since for a small model moving them costs as much as running it."""
    origin = _flat(start)
    directions = torch.stack([_flat(way) for way in ways])
    sizes = [weight.numel() for weight in start.values()]

    def weights(distances: Sequence[Tensor]) -> Weights:
        along = torch.stack([distance.reshape(()) for distance in distances])
        parts = torch.split(origin + along @ directions, sizes)
        return {name: part.view(w.shape).to(w.dtype) for (name, w), part in zip(start.items(), parts, strict=True)}

    return weights


def _flat(weights: Weights) -> Tensor:
    first = next(iter(weights.values()))
    return torch.cat([weight.reshape(-1).to(first) for weight in weights.values()])


def in_turns(field: Field, points: Array) -> tuple[Array, Array]:
    """Evaluate in chunks that double until that no longer pays: how many fit in the cache can only be tried."""
    most = max(1, ELEMENTS_AT_ONCE // max(1, field.loss.fixed_elements))
    done, size, values, gradients = 0, min(FIRST_CHUNK, most), [], []
    seconds: dict[int, float] = {}
    while done < len(points):
        started = time.thread_time()  # not by the clock, which on a busy machine measures the others
        value, gradient = field(points[done : done + size])
        seconds.setdefault(size, (time.thread_time() - started) / len(value))
        done += size
        values.append(value)
        gradients.append(gradient)
        size = _next_size(size, most, seconds)
    return np.concatenate(values), np.concatenate(gradients, axis=1)


def _next_size(size: int, most: int, seconds: dict[int, float]) -> int:
    best = min(seconds, key=lambda tried: seconds[tried])
    larger = min(2 * size, most)
    is_worth_trying = larger not in seconds and size == max(seconds) and seconds[size] <= MUCH_SLOWER * seconds[best]
    return larger if is_worth_trying else best
