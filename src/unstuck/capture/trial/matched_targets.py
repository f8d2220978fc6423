"""Which target belongs to which example, and to which position of it: found from what a loss was given.

What lies between the output of a layer and the prediction that a loss is given, such as a view or a slice, is found out
from the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.observers.losses import class_axis
from unstuck.capture.trial.example_features import Layout, by_example
from unstuck.capture.trial.model_probe import places_in_output
from unstuck.events.losses import CLASS_LOSSES

IGNORED = -100
MOST_COLUMNS = 64
"""Numbers in the target of one example; with more along an axis of the inputs, each belongs to a position."""
NEXT = 0.9
"""Share of targets that are the input one position later, from which on they are meant to be."""
COPY = 0.99
"""Correlation from which on a target is the input itself."""


class Obstacle(StrEnum):
    """Why a target cannot be matched with inputs."""

    NONE = ""
    SHAPES = "which target belongs to which example could not be found from their shapes"
    VOLUMES = "targets lie along more than two axes of positions"
    PLACES = "the targets are places in the batch, as in contrastive learning"
    COPIES = "the target is the input itself, as in an autoencoder"


class Compared(NamedTuple):
    """What a loss was given."""

    loss: str
    prediction: Tensor
    target: Tensor
    ignored: int
    output: Tensor
    """Of the layer that the prediction was taken from."""
    places: Tensor | None
    """Of each element of the prediction in that output, if it consists of these alone."""

    @property
    def is_classes(self) -> bool:
        """Are the targets class numbers?"""
        return self.loss in CLASS_LOSSES and not self.target.is_floating_point()

    def rows(self) -> Tensor:
        """The targets, one row for each item: (items,) classes or (items, numbers)."""
        target = self.target
        if self.is_classes:
            return target.reshape(-1)
        if target.dim() == 4 or (target.dim() == 3 and self.output.dim() == 4):
            target = target.movedim(1, -1) if target.dim() == 4 else target[..., None]
            return target.reshape(-1, target.shape[-1])
        return target.reshape(-1, 1) if target.dim() < 2 else target.reshape(-1, target.shape[-1])

    def answers(self) -> Tensor:
        """The predictions in the same order: (items, classes) or (items, numbers)."""
        prediction = self.prediction
        if self.is_classes:
            return prediction.movedim(class_axis(prediction), -1).reshape(self.target.numel(), -1)
        return Compared(self.loss, prediction, prediction.reshape(self.target.shape), 0, self.output, None).rows()


class Matching(NamedTuple):
    """Where the target of each example, and of each of its positions, is among the rows."""

    layout: Layout
    items: Tensor
    """(examples, positions): the row, or -1 where there is none."""


def compared(
    loss: str, prediction: Tensor, target: Tensor, ignored: int, outputs: Sequence[Tensor], shapes_known: bool
) -> Compared | None:
    """Note what a loss was given; `outputs` are those of layers, the latest last."""
    latest = [output for output in outputs[-6:] if output.requires_grad and output.dim() > 0][::-1]
    if not latest:
        return None
    kept = prediction.detach()
    if not shapes_known:
        for output in latest:
            places = places_in_output(prediction, output)
            if places is not None:
                return Compared(loss, kept, target.detach(), ignored, output.detach(), places)
    alike = [output for output in latest if output.shape == prediction.shape]
    alike = alike or [output for output in latest if len(output) == len(target)] if target.dim() else []
    output = (alike or latest)[0]
    return Compared(loss, kept, target.detach(), ignored, output.detach(), None)


def matched(found: Compared, inputs: Sequence[Tensor], sequence_first: bool) -> Matching | Obstacle:
    """Match the targets with the examples that the model was given."""
    target, output = found.target, found.output
    if target.dim() == 0 or target.numel() != (
        found.prediction.numel() if not found.is_classes else found.answers().shape[0]
    ):
        return Obstacle.SHAPES
    if _is_places(target):
        return Obstacle.PLACES
    if not found.is_classes and any(_is_copy(target, one) for one in inputs):
        return Obstacle.COPIES
    axes = _batch(inputs, output, sequence_first)
    if axes is None:
        return Obstacle.SHAPES
    size, axis, merged = axes
    second = (sequence_first and axis == 1) or all(len(one) != size for one in inputs)
    placed = _of_classes(found, size, axis, merged) if found.is_classes else _of_values(found, size, axis)
    if isinstance(placed, Obstacle):
        return placed
    positions, items = placed
    layout = Layout(size, positions, second)
    if positions and not any(_has_positions(one, layout) for one in inputs):
        # Slots of an answer: the first one stands for all.
        positions, items = (), items[:, :1]
    causal = found.is_classes and len(positions) == 1 and any(_is_next(found, items, one, layout) for one in inputs)
    return Matching(Layout(size, positions, second, causal), items)


def _batch(inputs: Sequence[Tensor], output: Tensor, sequence_first: bool) -> tuple[int, int, int] | None:
    """How many examples there are, their axis in the output, and how many positions are merged with them there."""
    first = output.shape[0]
    largest = sorted((one for one in inputs if one.dim() > 0), key=lambda one: -one.numel())
    for one in largest:
        if one.shape[0] == first:
            crossed = sequence_first and output.dim() > 2 and one.dim() > 1 and one.shape[1] == output.shape[1]
            return (output.shape[1], 1, 1) if crossed else (first, 0, 1)
        if one.dim() > 1 and one.shape[1] == first:
            return first, 0, 1
    for one in largest:
        if one.shape[0] > 1 and first % one.shape[0] == 0:
            return one.shape[0], 0, first // one.shape[0]
    return None


def _of_classes(found: Compared, size: int, axis: int, merged: int) -> tuple[tuple[int, ...], Tensor] | Obstacle:
    target, output, prediction = found.target, found.output, found.prediction
    count = target.numel()
    if found.places is None or output.dim() < 2:
        return _by_shape(target, output, size, axis)
    at = found.places.reshape(prediction.shape).movedim(class_axis(prediction), -1).reshape(count, -1)
    coordinates = _coordinates(at[:, 0], output.shape)
    others = [place for place in range(output.dim()) if place != axis]
    if at.shape[1] > 1:
        moved = _coordinates(at[:1, 1], output.shape)
        others = [place for place in others if bool(coordinates[place][0] == moved[place][0])]
    others = [place for place in others if output.shape[place] > 1]
    example, positions = coordinates[axis], [coordinates[place] for place in others]
    sizes = [output.shape[place] for place in others]
    if merged > 1:
        positions, sizes = [example % merged, *positions], [merged, *sizes]
        example = example // merged
    return _table(example, positions, sizes, size)


def _by_shape(target: Tensor, output: Tensor, size: int, axis: int) -> tuple[tuple[int, ...], Tensor] | Obstacle:
    count = target.numel()
    numbers = torch.arange(count)
    if target.dim() == 1 and count == size:
        return (), numbers[:, None]
    if target.dim() > 1 and target.shape[axis] == size:
        numbers = numbers.reshape(target.shape).movedim(axis, 0)
        positions = tuple(numbers.shape[1:])
        return (positions, numbers.reshape(size, -1)) if len(positions) < 3 else Obstacle.VOLUMES
    if target.dim() == 1 and output.dim() > 2 and count == output.shape[0] * output.shape[1]:
        numbers = numbers.reshape(output.shape[:2]).movedim(axis, 0)
        return (numbers.shape[1],), numbers
    return Obstacle.SHAPES


def _of_values(found: Compared, size: int, axis: int) -> tuple[tuple[int, ...], Tensor] | Obstacle:
    target, output = found.target, found.output
    numbers = torch.arange(len(found.rows()))
    if target.dim() == 4 or (target.dim() == 3 and output.dim() == 4):
        positions = tuple(target.shape[-2:])
        return (positions, numbers.reshape(size, -1)) if len(target) == size else Obstacle.SHAPES
    if target.dim() > 4:
        return Obstacle.VOLUMES
    if len(target) == size and axis == 0 and target.dim() < 3:
        return (), numbers[:, None]
    if target.dim() == 3 and target.shape[axis] == size:
        by_position = numbers.reshape(target.shape[:2]).movedim(axis, 0)
        return (by_position.shape[1],), by_position
    if found.places is not None and target.dim() == 1 and output.dim() < 3:
        return _table(_coordinates(found.places, output.shape)[axis], [], [], size)
    return Obstacle.SHAPES


def _table(
    example: Tensor, positions: list[Tensor], sizes: list[int], size: int
) -> tuple[tuple[int, ...], Tensor] | Obstacle:
    """The rows by example and position."""
    if len(positions) > 2:
        return Obstacle.VOLUMES
    flat = torch.zeros_like(example)
    for place, length in zip(positions, sizes, strict=True):
        flat = flat * length + place
    total = 1
    for length in sizes:
        total *= length
    items = torch.full((size, total), -1)
    items[example.cpu(), flat.cpu()] = torch.arange(len(example))
    return tuple(sizes), items


def _coordinates(flat: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    return torch.unravel_index(flat, shape)


def _has_positions(one: Tensor, layout: Layout) -> bool:
    examples = by_example(one, layout)
    if examples is None:
        return False
    if len(layout.positions) == 1:
        return layout.positions[0] in examples.shape[1:]
    return examples.dim() == 4 or tuple(examples.shape[1:]) == layout.positions


def _is_next(found: Compared, items: Tensor, one: Tensor, layout: Layout) -> bool:
    """Is the target of each position the id at the next one?"""
    ids = by_example(one, layout)
    if ids is None or ids.is_floating_point() or ids.dim() != 2 or ids.shape[1] != layout.positions[0]:
        return False
    targets = found.rows().cpu()[items.clamp(min=0)]
    counts = (items >= 0) & (targets != found.ignored)
    same = (targets[:, :-1] == ids[:, 1:].cpu()) & counts[:, :-1]
    total = int(counts[:, :-1].sum())
    return total > 0 and int(same.sum()) >= NEXT * total


def _is_places(target: Tensor) -> bool:
    whole = target.dim() == 1 and not target.is_floating_point() and len(target) > 2
    return whole and bool((target.diff() == 1).all())


def _is_copy(target: Tensor, one: Tensor) -> bool:
    if one.numel() != target.numel() or not one.is_floating_point() or target.numel() < 2 * MOST_COLUMNS:
        return False
    pair = torch.stack([one.detach().reshape(-1).float(), target.reshape(-1).float()])
    spread = pair.std(1)
    if float(spread.min()) == 0:
        return False
    return bool(torch.corrcoef(pair)[0, 1] > COPY)
