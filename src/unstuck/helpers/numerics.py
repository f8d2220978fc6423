"""Functions that are exact where they are safe, and whose value and gradient stay finite at the edge."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def safe_log(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x); below `eps` its tangent, so that 0 and less have a finite value and a gradient that leads upwards."""
    edge = _edge(x, eps)
    return torch.where(x > edge, x.clamp(min=edge).log(), math.log(edge) + (x - edge) / edge)


def safe_exp(x: Tensor, limit: float | None = None) -> Tensor:
    """exp(x); above `limit` its tangent, so that nothing overflows. The default is half of what the type can hold."""
    top = math.log(torch.finfo(x.dtype).max) / 2 if limit is None else limit
    return torch.where(x < top, x.clamp(max=top).exp(), math.exp(top) * (1 + x - top))


def safe_sqrt(x: Tensor, eps: float | None = None) -> Tensor:
    """sqrt(x); below `eps` a straight line to 0, where the slope of a root is infinite; 0 for what is negative."""
    edge = _edge(x, eps)
    root = x.clamp(min=edge).sqrt()
    return torch.where(x > edge, root, x.clamp(min=0) / math.sqrt(edge))


def safe_pow(x: Tensor, exponent: float, eps: float | None = None) -> Tensor:
    """x ** exponent for a base that may reach 0: where the slope would be infinite, it counts as at least `eps`."""
    return x.pow(exponent) if exponent >= 1 or exponent == 0 else x.clamp(min=_edge(x, eps)).pow(exponent)


def safe_divide(numerator: Tensor, denominator: Tensor, eps: float | None = None) -> Tensor:
    """numerator / denominator; a denominator nearer to 0 than `eps` counts as `eps`, with its sign."""
    edge = _edge(denominator, eps)
    away = torch.where(denominator < 0, -edge, edge)
    return numerator / torch.where(denominator.abs() < edge, away, denominator)


def safe_norm(x: Tensor, dim: int | tuple[int, ...] | None = None, *, keepdim: bool = False) -> Tensor:
    """The Euclidean norm, with gradient 0 at 0, where the root of a sum of squares has NaN; nothing overflows."""
    if x.numel() == 0:
        empty: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)
        return empty
    largest = x.detach().abs().amax(dim if dim is not None else (), keepdim=True)
    unit = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    norm: Tensor = torch.linalg.vector_norm(x / unit, dim=dim, keepdim=True) * unit
    if keepdim:
        return norm
    return norm.reshape(()) if dim is None else norm.squeeze(dim)


def safe_acos(x: Tensor, eps: float | None = None) -> Tensor:
    """acos(x) of a cosine that rounding may have carried past 1; within `eps` of -1 and 1 the gradient is 0."""
    edge = _edge(x, eps)
    return x.clamp(-1 + edge, 1 - edge).acos()


def log_space(*factors: Tensor, eps: float | None = None) -> Tensor:
    """A product taken apart: sign * (log|A| + log|B|), so that a factor near 0 does not take the other's gradient away.

    The gradient for A is sign / A whatever B is. A factor of exactly 0 counts as positive.
    """
    if not factors:
        raise ValueError("log_space() needs at least one factor.")
    sign = torch.ones_like(factors[0])
    total = torch.zeros_like(factors[0])
    for factor in factors:
        own = torch.where(factor.detach() < 0, -1.0, 1.0).to(factor.dtype)
        sign = sign * own
        total = total + safe_log(factor * own, eps)
    return sign * total


def _edge(x: Tensor, eps: float | None) -> float:
    if eps is not None and not eps > 0:
        raise ValueError(f"eps must be above 0, not {eps}.")
    return torch.finfo(x.dtype).eps if eps is None else eps
