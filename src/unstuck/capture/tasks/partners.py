"""Contrastive losses: are the pairs that the loss pulls together those whose inputs are alike?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, operation, shape_of
from unstuck.capture.tasks.cells import Whole
from unstuck.events import Pairing, PartnersSeen, Place

_NEAR = 120
_FEWEST = 8
_MOST = 1024
_MOST_NUMBERS = 2**14
"""Of one example."""


def seen(
    whole: Whole, nodes: Sequence[Node], inputs: Sequence[Tensor], step: int, place: Place | None
) -> PartnersSeen | None:
    """The first table of scores near the loss whose rows each have one entry, or few, that the loss wants higher."""
    for node in nodes[:_NEAR]:
        shape = shape_of(node)
        if operation(node) != "Mm" or len(shape) != 2 or shape[0] != shape[1] or not _FEWEST <= shape[0] <= _MOST:
            continue
        sides = _sides(inputs, shape[0])
        asked = whole.pulls([node]).get(node) if sides else None
        if asked is None or asked.shape != shape or not sides:
            continue
        if len(sides) == 1:
            asked = asked + asked.t()
            asked.fill_diagonal_(0)
        partner = _pulled(asked)
        if partner is not None:
            return _event(asked, partner, sides, step, place)
    return None


def _sides(inputs: Sequence[Tensor], count: int) -> list[Tensor]:
    """The inputs that belong to the rows of the table, and to its columns if these are others."""
    plain = [one for one in inputs if one.dim() > 1 and one[0].numel() <= _MOST_NUMBERS]
    whole = [one for one in plain if len(one) == count]
    if len(whole) == 1:
        return whole
    if len(whole) == 2 and whole[0].shape == whole[1].shape:
        return whole
    halves = [one for one in plain if 2 * len(one) == count]
    if len(halves) == 2 and halves[0].shape == halves[1].shape:
        return [torch.cat(halves)]
    return []


def _pulled(asked: Tensor) -> Tensor | None:
    """The partner of each row: the entry that the loss wants higher most; None if the table holds something else."""
    lowest, partner = asked.min(1)
    pulled = (asked < -1e-3 * lowest.abs().clamp_min(1e-30)[:, None]).sum(1)
    few = float((pulled <= max(1, len(asked) // 8)).double().mean())
    return partner if bool((lowest < 0).all()) and few == 1.0 else None


def _event(asked: Tensor, partner: Tensor, sides: list[Tensor], step: int, place: Place | None) -> PartnersSeen:
    count = len(partner)
    rows = torch.arange(count)
    pairings = {Pairing.ROWS: rows} if len(sides) == 2 else {}
    if len(sides) == 1 and count % 2 == 0:
        pairings = {Pairing.HALVES: (rows + count // 2) % count, Pairing.NEIGHBOURS: rows ^ 1}
    tables = [_likeness(one, sides) for one in (_plain, _sorted, _means)]
    off = ~torch.eye(count, dtype=torch.bool) if len(sides) == 1 else torch.ones(count, count, dtype=torch.bool)

    def alike(other: Tensor) -> float:
        """In standard errors above pairs at random, by the description of inputs that shows it best."""
        found = []
        for table in tables:
            spread = float(table[off].std())
            if spread > 0:
                found.append((float(table[rows, other].mean()) - float(table[off].mean())) / spread * count**0.5)
        return max(found, default=0.0)

    best = max(pairings, key=lambda one: alike(pairings[one]), default=Pairing.HALVES)
    is_known = best in pairings
    return PartnersSeen(
        step=step,
        place=place,
        examples=count,
        pulled=alike(partner),
        pairing=best,
        alike=alike(pairings[best]) if is_known else 0.0,
        same=float((asked[rows, pairings[best]] < 0).double().mean()) if is_known else 1.0,
    )


def _likeness(described: Callable[[Tensor], Tensor], sides: list[Tensor]) -> Tensor:
    one, *other = [described(side.detach().double()) for side in sides]
    table: Tensor = _standard(one) @ _standard(other[0] if other else one).t()
    return table


def _standard(rows: Tensor) -> Tensor:
    rows = rows - rows.mean(0)
    lengths: Tensor = rows.square().sum(1, keepdim=True).sqrt()
    return rows / lengths.clamp_min(1e-12)


def _plain(inputs: Tensor) -> Tensor:
    return inputs.reshape(len(inputs), -1)


def _sorted(inputs: Tensor) -> Tensor:
    """Values whatever their place: a shift or a flip leaves them alone."""
    return inputs.reshape(len(inputs), -1).sort(1).values


def _means(inputs: Tensor) -> Tensor:
    """The mean and spread of each channel."""
    channels = inputs.reshape(len(inputs), inputs.shape[1] if inputs.dim() > 2 else 1, -1)
    return torch.cat([channels.mean(2), channels.std(2)], 1)
