"""Maps: do masks and grids of targets lie as the images they belong to, or flipped, turned or transposed?

What can be seen of the image around each cell of the map is fitted to the target there, on half of the examples, and
judged on the others; then the same with all targets flipped, turned and transposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.live_objects.arguments import tensors_in
from unstuck.capture.trial.model_probe import Compared
from unstuck.capture.trial.relations.turns import TURNS, UPRIGHT
from unstuck.findings.relations import Answer, Relation, State

FEWEST_CELLS = 4
MOST_CELLS = 32
"""Along an axis; larger maps are made smaller."""
FEWEST_EXAMPLES = 8
MOST_CLASSES = 32
MOST_CHANNELS = 4
RIDGE = 1e-2
FITS = 0.1
"""The share of variance that must be explained with the targets turned, in both halves,"""
OWN = 0.25
"""and the share of that which may be explained as they are."""


class Maps(NamedTuple):
    """Images [N, F, H, W] as seen from the cells of a map, and the targets [N, K, H, W] there."""

    seen: Tensor
    targets: Tensor


def turned(compared: Compared) -> Iterator[Answer]:
    """Do the targets of this loss lie as its images? Nothing where there are no images with maps."""
    for maps in _maps(compared):
        own = _fits(maps.seen, maps.targets)
        is_square = maps.targets.shape[-2] == maps.targets.shape[-1]
        turns = TURNS if is_square else TURNS[:UPRIGHT]
        if own is None:
            continue
        fits = {how: _fits(maps.seen, turn(maps.targets)) or (0.0, 0.0) for how, turn in turns}
        best = max(fits, key=lambda how: min(fits[how]))
        fit, as_it_is = min(fits[best]), max(0.0, *own)
        if fit >= FITS and as_it_is <= OWN * fit:
            yield Answer(
                relation=Relation.ALIGNMENT,
                state=State.BROKEN,
                sentence=f"Targets do not lie as their images: {best}, {fit:.0%} of their variance can be read from "
                f"what the images show at their place; as they are, {as_it_is:.0%}.",
                form="turned",
                subject="targets",
                measures={"turn": best, "fit": fit, "fit as it is": as_it_is},
                place=compared.place,
            )
        else:
            yield Answer(
                relation=Relation.ALIGNMENT,
                state=State.HOLDS,
                sentence="Flipped, turned or transposed, the targets do not fit their images much better.",
                place=compared.place,
            )


def _maps(compared: Compared) -> Iterator[Maps]:
    targets = _targets(compared.target.detach().cpu())
    if targets is None or len(targets) < FEWEST_EXAMPLES:
        return
    for image in _images(compared.called.inputs, targets):
        yield Maps(_seen(image, targets.shape[-2], targets.shape[-1]), targets)


def _targets(target: Tensor) -> Tensor | None:
    """As [N, K, H, W]: numbers as they are, classes as one channel each."""
    if target.dim() not in (3, 4) or min(target.shape[-2:]) < FEWEST_CELLS:
        return None
    if target.is_floating_point():
        found = target if target.dim() == 4 else target[:, None]
        found = found[:, :MOST_CHANNELS]
    elif target.dim() == 3:
        classes = torch.unique(target)
        if not 2 <= len(classes) <= MOST_CLASSES:
            return None
        found = torch.stack([target == one for one in classes[-MOST_CHANNELS:]], 1)
    else:
        found = target[:, :MOST_CHANNELS]
    if not torch.isfinite(found.float()).all():
        return None
    rows, columns = (min(size, MOST_CELLS) for size in found.shape[-2:])
    return F.adaptive_avg_pool2d(found.float(), (rows, columns))


def _images(inputs: Any, targets: Tensor) -> Iterator[Tensor]:
    """Inputs [N, C, H, W] of the same shape as the map, or some times as large."""
    for tensor in tensors_in(list(inputs.values()) if isinstance(inputs, dict) else list(inputs)):
        if tensor.dim() == 4 and tensor.is_floating_point() and len(tensor) == len(targets):
            height, width = tensor.shape[-2:]
            rows, columns = targets.shape[-2:]
            if height >= rows and width >= columns and height * columns == width * rows:
                yield tensor.detach().float().cpu()


def _seen(image: Tensor, rows: int, columns: int) -> Tensor:
    """Mean and spread of up to four channels around each cell, and in its eight neighbours."""
    if image.shape[1] > MOST_CHANNELS:
        mix = torch.randn(MOST_CHANNELS, image.shape[1], generator=torch.Generator().manual_seed(0))
        image = torch.einsum("kc,nchw->nkhw", mix.to(image), image)
    mean = F.adaptive_avg_pool2d(image, (rows, columns))
    spread = (F.adaptive_avg_pool2d(image.square(), (rows, columns)) - mean.square()).clamp_min(0).sqrt()
    cells = torch.cat([mean, spread], 1)
    around = F.unfold(F.pad(cells, (1, 1, 1, 1), mode="replicate"), 3)
    return around.reshape(len(image), -1, rows, columns)


def _fits(seen: Tensor, targets: Tensor) -> tuple[float, float] | None:
    """The share of the targets' variance that is explained in either half of the examples, fitted to the other."""
    half = len(seen) // 2
    parts = [(_rows(seen[part]), _rows(targets[part])) for part in (slice(None, half), slice(half, None))]
    first, second = _share(*parts[1], *parts[0]), _share(*parts[0], *parts[1])
    return (first, second) if first is not None and second is not None else None


def _rows(maps: Tensor) -> Tensor:
    return maps.movedim(1, -1).flatten(0, -2).double()


def _share(x: Tensor, y: Tensor, other_x: Tensor, other_y: Tensor) -> float | None:
    total = (other_y - y.mean(0)).square().sum()
    if float(total) <= 0 or len(x) < 4 * x.shape[1]:
        return None
    mean, spread = x.mean(0), x.std(0).clamp_min(1e-6)
    x, other_x = (x - mean) / spread, (other_x - mean) / spread
    own = x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(own, x.T @ (y - y.mean(0)))
    rest = (other_y - y.mean(0) - other_x @ weights).square().sum()
    return float(1 - rest / total)
