"""A small, fair part of a large tensor: enough to estimate norms, shares and histograms at a tenth of the cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain

BLOCKS, WIDTH = 256, 16
"""Contiguous blocks spread over the tensor. Single elements at a stride would beat with the length of its rows."""
_ENOUGH = 0.875
"""The share of its rows that a sample reaches at least."""
LOWEST = -40
BINS = 82
"""Zeros, then one bin for each power of two from 2^-40 to 2^40; the ends take what lies beyond."""


def readable(tensor: Any) -> Tensor | None:
    """The tensor itself or what stands for its values: the real parts of a complex one, the filled part of a sparse
    one, this rank's shard of a distributed one. None if nothing can be read."""
    if is_plain(tensor):
        return tensor if isinstance(tensor, Tensor) else None
    if not isinstance(tensor, Tensor) or tensor.is_meta:
        return None
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return readable(local)
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return None
    if tensor.layout is torch.sparse_coo:
        return readable(tensor.detach()._values())
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().resolve_conj())
    return None


def sample(tensor: Tensor, blocks: int = BLOCKS) -> Tensor:
    """The whole of a small tensor, or a view of blocks of a large one that lies densely in memory. Call it where no
    graph is built."""
    size = tensor.numel()
    if size <= 2 * blocks * WIDTH:
        return tensor
    if not _is_dense(tensor):
        return tensor.narrow(0, 0, max(1, -(-blocks * WIDTH * tensor.shape[0] // size)))
    return tensor.as_strided(*_spread(size, blocks, max(tensor.stride())), tensor.storage_offset())


@functools.lru_cache(maxsize=1024)
def _spread(size: int, blocks: int, row: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shape and strides of a view of blocks in groups.

    Whole rows from block to block would always lead to the same columns: those of the dark edge, in the first layer of
    many a model. So each begins a share of a row further to the right than the last. What that shortens a group, the
    steps from group to group make up for; where these would lose the last rows, they stay as they are.
    """
    groups = math.isqrt(blocks)
    each = blocks // groups
    near = _shifted((size // groups - WIDTH) // (each - 1), row, (0.382, 0.618))
    longest = (size - (each - 1) * near - WIDTH) // (groups - 1)
    far = _shifted(longest, row, (0.29, 0.414, 0.586, 0.71))
    return (groups, each, WIDTH), (far if far >= _ENOUGH * longest else longest, near, 1)


def _shifted(longest: int, row: int, shares: tuple[float, ...]) -> int:
    """The largest stride that is whole rows and one of these shares of a row; multiples of the shares fall evenly into
    a row."""
    return longest if longest < row else longest - min((longest - int(share * row)) % row for share in shares)


def _is_dense(tensor: Tensor) -> bool:
    """Does it fill its stretch of memory, in whatever order?"""
    return (
        tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
        or (tensor.dim() == 2 and tensor.T.is_contiguous())
    )


def histograms(samples: Sequence[Tensor]) -> Tensor:
    """Counts of |x| by powers of two, `BINS` for each sample, one after the other."""
    values = joined(samples)
    exponents = torch.frexp(values)[1].clamp_(LOWEST, LOWEST + BINS - 2) - LOWEST + 1
    bins = torch.where(values == 0, 0, exponents)
    sizes = torch.tensor([part.numel() for part in samples])
    owners = torch.repeat_interleave(torch.arange(len(samples)), sizes).to(bins.device)
    return torch.bincount((owners * BINS + bins).long(), minlength=len(samples) * BINS)


def rows_of(counts: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """The counts of `histograms`, sample by sample."""
    whole = [int(count) for count in counts]
    return tuple(tuple(whole[start : start + BINS]) for start in range(0, len(whole), BINS))


def joined(samples: Sequence[Tensor]) -> Tensor:
    """The samples one after the other, in the widest of their kinds."""
    wide = torch.float64 if any(part.dtype is torch.float64 for part in samples) else torch.float32
    device = samples[0].device
    return torch.cat([part.reshape(-1).to(device, wide) for part in samples])


def rounded(values: Tensor) -> Tensor:
    """To four significant digits: the doubles nearest to those decimals, so that all but tiny ones are short."""
    digits = (3 - values.abs().log10_().floor_()).nan_to_num_(0.0, 0.0, 0.0).clamp_(-300, 300)
    up, down = torch.pow(10.0, digits.clamp_min(0)), torch.pow(10.0, (-digits).clamp_min_(0))
    return values.mul(up).div_(down).round_().mul_(down).div_(up)


def short(values: Sequence[float]) -> tuple[float | None, ...]:
    """To four significant digits, so that a record need not keep sixteen; None for what is not finite."""
    return tuple(float(f"{value:.4g}") if math.isfinite(value) else None for value in values)
