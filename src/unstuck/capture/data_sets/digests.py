"""A number for each example that differs if any of its elements does, and one for each part of it."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS = 64
"""Parts of an example. One with no more columns has one for each of them."""
_SHORTEST = 4
"""Positions from which on ids are a sequence, which may be padded."""
_FACTORS = 4096
_FEWEST, _SHARE = 3, 0.1
"""Sequences of a batch that end with the same id twice."""


class Padding(NamedTuple):
    """What fills the ends of sequences of ids."""

    value: int
    leads: bool
    """Is it at the beginning?"""

    def mask(self, ids: Tensor) -> Tensor:
        """Which positions it is at."""
        rows = ids.flip(1) if self.leads else ids
        found = (rows == self.value).flip(1).cumprod(1).flip(1).bool()
        return found.flip(1) if self.leads else found


def padding_of(batch: Tensor) -> Padding | None:
    """An id that several sequences of a batch end with, or begin with, more than once."""
    if batch.is_floating_point() or batch.dtype == torch.bool or batch.dim() != 2 or batch.shape[1] < _SHORTEST:
        return None
    for leads in (False, True):
        rows = batch.flip(1) if leads else batch
        runs = rows[rows[:, -1] == rows[:, -2], -1]
        if len(runs):
            value = int(runs.mode().values)
            if int((runs == value).sum()) >= max(_FEWEST, _SHARE * len(batch)):
                return Padding(value, leads)
    return None


def blocks(examples: Tensor, padding: Padding | None = None) -> Tensor:
    """(examples, at most `BLOCKS`) whole numbers. Their sum stands for the example, however it was padded."""
    flat = _bits(examples, padding)
    width = flat.shape[1]
    factors, places = _factors(width)
    products = flat * factors
    if width <= BLOCKS:
        return products
    return torch.zeros(len(flat), BLOCKS, dtype=torch.int64).index_add_(1, places, products)


def factors_of_parts(count: int) -> Tensor:
    """An odd number for each of the tensors of an example."""
    generator = torch.Generator().manual_seed(_FACTORS)
    return torch.randint(-(2**62), 2**62, (count,), generator=generator) * 2 + 1


def of_steps(series: Tensor) -> Tensor:
    """(examples, steps): a number for each step of (examples, steps, numbers)."""
    flat = _bits(series.reshape(-1, series.shape[2]))
    return (flat * _factors(flat.shape[1])[0]).sum(1).reshape(series.shape[:2])


def _bits(examples: Tensor, padding: Padding | None = None) -> Tensor:
    """Each element as a whole number; padding as 0, and before the ids moved behind them."""
    flat = examples.reshape(len(examples), -1)
    if flat.is_floating_point():
        narrow = torch.nan_to_num(flat.float(), nan=1.25e38) + 0.0  # there is a -0.0
        return narrow.contiguous().view(torch.int32).long()
    whole = flat.long() + 1
    if padding is not None:
        away = padding.mask(flat)
        whole = whole * ~away
        if padding.leads:
            whole = whole.gather(1, away.long().argsort(stable=True, dim=1))
    return whole


@functools.lru_cache(64)
def _factors(width: int) -> tuple[Tensor, Tensor]:
    """An odd number for each column, and which block it is part of. A narrower table has the first of a wider one."""
    factors, places = zip(*(_some_factors(number) for number in range(-(-width // _FACTORS))), strict=True)
    return torch.cat(factors)[:width], torch.cat(places)[:width]


def _some_factors(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    factors = torch.randint(-(2**62), 2**62, (_FACTORS,), generator=generator) * 2 + 1
    return factors, torch.randint(BLOCKS, (_FACTORS,), generator=generator)
