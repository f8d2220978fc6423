"""Numbers that stand for each example, or for a position of it, in a tensor of any shape: inputs and results of layers.

They are few whatever the size of the tensor: what is too large is averaged over neighbours, and hashed.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_HASHED = 2**17
"""Numbers of one example that are hashed; of more, only averages are taken."""
PAST = (-3, -2, -1, 0)
AROUND = (-2, -1, 0, 1, 2)
_PRIME = 2_654_435_761
_ENDS = 4
"""Positions at each end of a long sequence that are looked at one by one."""


class Layout(NamedTuple):
    """How examples and positions lie in the tensors of one batch."""

    size: int
    """Examples in the batch."""
    positions: tuple[int, ...] = ()
    """How many there are along each axis: () if an example has one target, (T,) or (H, W)."""
    sequence_first: bool = False
    is_causal: bool = False
    """Are targets the inputs that come next? Then nothing after a position may be looked at."""

    @property
    def offsets(self) -> tuple[int, ...]:
        """Neighbours of a position in a sequence that are looked at."""
        return PAST if self.is_causal else AROUND


def by_example(tensor: Tensor, layout: Layout) -> Tensor | None:
    """The same with the examples on the first axis; None if no axis is theirs."""
    shape, size = tensor.shape, layout.size
    length = layout.positions[0] if len(layout.positions) == 1 else 0
    if tensor.dim() == 0:
        return None
    if length > 1 and shape[0] == size * length and shape[0] != size:
        split = tensor.reshape(length, size, *shape[1:]) if layout.sequence_first else None
        return tensor.reshape(size, length, *shape[1:]) if split is None else split.transpose(0, 1)
    in_second = tensor.dim() > 1 and shape[1] == size
    if in_second and (shape[0] != size or (layout.sequence_first and tensor.dim() > 2)):
        return tensor.transpose(0, 1)
    if shape[0] == size:
        return tensor
    if shape[0] > size and shape[0] % size == 0 and not layout.sequence_first:
        return tensor.reshape(size, shape[0] // size, *shape[1:])
    return None


def whole(examples: Tensor, most: int) -> Tensor:
    """At most so many numbers for each example of a float tensor whose first axis they are on."""
    examples = examples.detach().float()
    flat = examples.flatten(1) if examples.dim() > 1 else examples[:, None]
    if flat.shape[1] <= most:
        return flat
    parts = _averages(examples, most)
    left = most - sum(part.shape[1] for part in parts)
    if flat.shape[1] <= MOST_HASHED or not parts:
        parts.append(hashed(flat, left))
    return torch.cat(parts, 1)


def _averages(examples: Tensor, most: int) -> list[Tensor]:
    if examples.dim() == 4:
        share = most * 3 // 4
        grid = int((share / examples.shape[1]) ** 0.5)
        if grid < 1:
            return [hashed(examples.mean((2, 3)), share)]
        height, width = (min(grid, side) for side in examples.shape[2:])
        return [F.adaptive_avg_pool2d(examples, (height, width)).flatten(1)]
    if examples.dim() == 3:
        return [hashed(part, most // 4) for part in (examples.mean(1), examples.mean(2), examples[:, -1])]
    return []


def hashed(table: Tensor, most: int) -> Tensor:
    """Each column added, with a random sign, to one of so many others; as it is if it has no more."""
    if table.shape[1] <= most:
        return table
    places, signs = _hash(table.shape[1], most)
    out = table.new_zeros(len(table), most)
    return out.index_add_(1, places.to(table.device), table * signs.to(table.device))


@functools.lru_cache(64)
def _hash(columns: int, most: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(columns)
    places = torch.randint(most, (columns,), generator=generator)
    return places, torch.randint(2, (columns,), generator=generator).float() * 2 - 1


def whole_ids(examples: Tensor, kinds: int, most: int) -> Tensor:
    """The same of ids: which id is at which position, or where that is too much, which occur and which are at the
    ends."""
    flat = examples.detach().flatten(1).long() if examples.dim() > 1 else examples.detach().long()[:, None]
    length = flat.shape[1]
    if length * kinds <= most:
        return one_hot(flat, kinds).flatten(1)
    if length <= 2 * _ENDS:
        return one_hot(flat, most // length).flatten(1)
    bag = one_hot(flat, most // 2).sum(1)
    ends = torch.cat([flat[:, :_ENDS], flat[:, -_ENDS:]], 1)
    return torch.cat([bag, one_hot(ends, most // (4 * _ENDS)).flatten(1)], 1)


def one_hot(ids: Tensor, kinds: int) -> Tensor:
    """A last axis of `kinds` numbers, one of which is 1. Ids above are hashed."""
    places = torch.where((ids >= 0) & (ids < kinds), ids, (ids * _PRIME) % kinds)
    return torch.zeros(*ids.shape, kinds, device=ids.device).scatter_(-1, places[..., None], 1.0)


def around(examples: Tensor, layout: Layout, chosen: Tensor, most: int, kinds: int = 0) -> Tensor | None:
    """(examples, chosen positions, numbers): what is at and next to each position; None if no axes are theirs.

    `kinds`: the tensor holds ids.
    """
    examples = examples.detach()
    if len(layout.positions) == 1:
        return _in_sequence(examples, layout, chosen[:, 0], most, kinds)
    return None if kinds else _in_image(examples.float(), layout, chosen, most)


def _in_sequence(examples: Tensor, layout: Layout, chosen: Tensor, most: int, kinds: int) -> Tensor | None:
    length = layout.positions[0]
    axis = next((axis for axis in range(1, examples.dim()) if examples.shape[axis] == length), None)
    if axis is None or length < 2:
        return None
    steps = examples.movedim(axis, 1)
    offsets = torch.tensor(layout.offsets)
    places = chosen[:, None] + offsets
    inside = ((places >= 0) & (places < length)).to(examples.device)
    near = steps[:, places.clamp(0, length - 1).to(examples.device)]
    each = most // len(offsets)
    if kinds:
        found = one_hot(near.long(), min(kinds, each)) if near.dim() == 3 else None
        return None if found is None else (found * inside[..., None]).flatten(2)
    table = near.float().flatten(3) if near.dim() > 3 else near.float()[..., None]
    rows = hashed(table.reshape(-1, table.shape[-1]), each).reshape(*table.shape[:3], -1)
    return (rows * inside[..., None]).flatten(2)


def _in_image(examples: Tensor, layout: Layout, chosen: Tensor, most: int) -> Tensor | None:
    height, width = layout.positions
    if examples.dim() == 3 and examples.shape[1:] == (height, width):
        examples = examples[:, None]
    if examples.dim() != 4:
        return None
    if examples.shape[1:3] == (height, width) and examples.shape[2:] != (height, width):
        examples = examples.movedim(3, 1)
    rows, columns = examples.shape[2:]
    if rows * columns < 4:
        return None
    y = (chosen[:, 0] * rows // height).to(examples.device)
    x = (chosen[:, 1] * columns // width).to(examples.device)
    padded = F.pad(examples, (1, 1, 1, 1))
    near = [padded[:, :, y + down, x + right] for down in range(3) for right in range(3)]
    table = torch.stack(near, 3).permute(0, 2, 3, 1)  # examples, chosen, neighbours, channels
    flat = table.reshape(table.shape[0] * table.shape[1], -1)
    return hashed(flat, most).reshape(table.shape[0], table.shape[1], -1)
