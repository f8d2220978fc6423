"""Are pixels and samples next to each other as they were recorded? Another reading of the same numbers may be smoother.

A `view` or `reshape` where a `permute` was meant leaves the numbers in their old order under new axes. Undone, what was
noise becomes an image. Numbers without any order look equally rough both ways, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unstuck.capture.live_objects.arguments import tensors_in
from unstuck.capture.trial.model_probe import Called
from unstuck.findings.relations import Answer, Relation, State

SMOOTHER = 0.5
"""How much of the roughness may be left when the reading is undone."""
ROUGH = 0.5
"""Roughness as it is, as a share of that of numbers in random order, below which inputs are in order."""
LESS = 0.8
"""Noise in every pixel is as rough in any reading. Then so much of the differences may be left, in nearly every one."""
NEARLY_ALL = 0.9
FEWEST_IMAGES = 16
MOST = 2**20
FEWEST = 8
"""Pixels or samples along an axis."""


def answers(models: Sequence[Called]) -> list[Answer]:
    """Of the first input that has a layout."""
    for called in models:
        values = list(called.inputs.values()) if isinstance(called.inputs, dict) else list(called.inputs)
        for tensor in tensors_in(values):
            found = _answer(tensor, type(called.module).__name__)
            if found is not None:
                return [found]
    why = "Not tested: no input is an image with channels [N, C, H, W] or a series [N, T, F]."
    return [Answer(relation=Relation.LAYOUT, state=State.DOES_NOT_APPLY, sentence=why)]


def _answer(tensor: Tensor, model: str) -> Answer | None:
    readings = list(_readings(tensor))
    if not readings:
        return None
    own = _roughness(*readings[0][1:])
    others = {name: _roughness(values, axes) for name, values, axes in readings[1:]}
    best = min(others, key=lambda name: others[name])
    shape = " x ".join(map(str, tensor.shape))
    smoothness = ""
    if own >= ROUGH and others[best] <= SMOOTHER * own and (tensor.dim() == 4 or _goes_on(tensor, own)):
        smoothness = (
            f"Read as {best}, the inputs of {model} ({shape}) are {own / max(others[best], 1e-3):.1f} times "
            f"as smooth: neighbours differ by {others[best]:.0%} of what they would in random order, and by "
            f"{own:.0%} as they are."
        )
    elif own >= ROUGH and tensor.dim() == 4:
        left = {name: _left(readings[0][1], values) for name, values, _ in readings[1:]}
        best = min(left, key=lambda name: left[name][0])
        share, images = left[best]
        if share <= LESS and images >= NEARLY_ALL:
            smoothness = (
                f"Read as {best}, neighbouring pixels of the inputs of {model} ({shape}) differ by {1 - share:.0%} "
                f"less than as they are, in {images:.0%} of the images."
            )
    if smoothness:
        return Answer(
            relation=Relation.LAYOUT,
            state=State.BROKEN,
            sentence=smoothness,
            form="scrambled",
            subject=model,
            measures={"roughness": own, "read otherwise": others[best], "reading": best},
        )
    return Answer(
        relation=Relation.LAYOUT,
        state=State.HOLDS,
        sentence=f"No other reading of the inputs ({shape}) is much smoother.",
        subject=model,
    )


def _readings(tensor: Tensor) -> Iterator[tuple[str, Tensor, tuple[int, ...]]]:
    """The tensor as it is, and what it is if its last `view` should have been a `permute`; the axes of neighbours."""
    if not tensor.is_floating_point() and tensor.dtype is not torch.uint8:
        return
    size = tensor.shape
    if tensor.dim() == 4 and size[1] in (2, 3, 4) and min(size[2:]) >= FEWEST:
        kept = tensor[: max(1, MOST // tensor[0].numel())].float()
        count, channels, height, width = kept.shape
        yield "as it is", kept, (2, 3)
        yield "[N, H, W, C]", kept.reshape(count, height, width, channels).permute(0, 3, 1, 2), (2, 3)
        yield "[N, H, C, W]", kept.reshape(count, height, channels, width).transpose(1, 2), (2, 3)
    elif tensor.dim() == 3 and size[1] >= FEWEST and size[2] > 1 and tensor.is_floating_point():
        kept = tensor[: max(1, MOST // tensor[0].numel())].float()
        count, length, features = kept.shape
        yield "as it is", kept, (1,)
        yield "[N, F, T]", kept.reshape(count, features, length).transpose(1, 2), (1,)


def _goes_on(tensor: Tensor, own: float) -> bool:
    """Does each row of a series begin where the last one ended? Rows that are smooth by themselves do not."""
    kept = tensor[: max(1, MOST // tensor[0].numel())].float()
    chance = float((kept - kept.roll(1, 0).roll(kept.shape[1] // 2, 1)).abs().mean())
    jumps = float((kept[:, 1:, 0] - kept[:, :-1, -1]).abs().mean())
    return chance > 0 and jumps / chance <= SMOOTHER * own


def _left(own: Tensor, other: Tensor) -> tuple[float, float]:
    """The share of the differences between neighbours that is left in the other reading, and of images with fewer."""
    if len(own) < FEWEST_IMAGES:
        return 1.0, 0.0
    before, after = (
        sum(values.diff(dim=axis).abs().flatten(1).mean(dim=1) for axis in (2, 3)) for values in (own, other)
    )
    assert isinstance(before, Tensor)
    assert isinstance(after, Tensor)
    return float(after.sum() / before.sum().clamp_min(1e-12)), float((after < before).float().mean())


def _roughness(values: Tensor, axes: tuple[int, ...]) -> float:
    """The mean difference between neighbours, as a share of that in random order: about 1 for noise."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for axis in axes:
        moved = values.movedim(axis, -1)
        mixed = values.flatten(min(axes), max(axes)) if len(axes) > 1 else values.movedim(axis, -1)
        order = torch.randperm(mixed.shape[-1] if len(axes) == 1 else mixed.shape[min(axes)], generator=generator)
        mixed = mixed.index_select(-1 if len(axes) == 1 else min(axes), order.to(mixed.device))
        chance = float(mixed.diff(dim=-1 if len(axes) == 1 else min(axes)).abs().mean())
        parts.append(float(moved.diff(dim=-1).abs().mean()) / chance if chance > 0 else 1.0)
    return sum(parts) / len(parts)
