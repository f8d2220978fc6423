"""Ways to clip. All but `ClipValue` keep the direction of what they clip."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

TINY = 1e-6  # as torch.nn.utils.clip_grad_norm_ has it, so that both give the same gradients


@dataclass(frozen=True)
class Places:
    """To which layer and which parameter group each gradient belongs."""

    layers: Sequence[int]
    groups: Sequence[int]


FindPlaces: TypeAlias = Callable[[], Places]


class Clip(ABC):
    """What to multiply the gradients by, given their norms."""

    @abstractmethod
    def factor(self, norms: Tensor, total: Tensor, known: float | None, places: FindPlaces) -> Tensor | None:
        """One factor for all, one for each, or None to leave them; `known` is `total` if it is on the host."""

    @property
    def limit(self) -> float | Tensor | None:
        """The threshold of the last step, if there is one for the whole gradient."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What must be remembered to go on later."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most have no state)
        """Go on from a saved state."""


class ClipNorm(Clip):
    """Shorten the gradient to `max_norm`: the whole of it, that of each layer, or that of each parameter group."""

    def __init__(self, max_norm: float | Sequence[float], per: Literal["model", "layer", "group"] = "model") -> None:
        if per not in ("model", "layer", "group"):
            raise ValueError(f'ClipNorm(per=...) is "model", "layer" or "group", not {per!r}.')
        if isinstance(max_norm, Sequence) and per != "group":
            raise ValueError('Several values of max_norm need per="group": one for each parameter group.')
        limits = [*max_norm] if isinstance(max_norm, Sequence) else [max_norm]
        if not limits or not all(limit > 0 for limit in limits):
            raise ValueError(f"max_norm must be above 0, not {max_norm}.")
        self.max_norm = max_norm
        self.per = per

    @property
    def limit(self) -> float | None:
        return self.max_norm if self.per == "model" and not isinstance(self.max_norm, Sequence) else None

    def factor(self, norms: Tensor, total: Tensor, known: float | None, places: FindPlaces) -> Tensor | None:
        if self.limit is not None:
            return shortened(total, known, self.limit)
        if self.per == "layer":
            return self._by_part(norms, places().layers)
        return self._by_part(norms, places().groups)

    def _by_part(self, norms: Tensor, parts: Sequence[int]) -> Tensor:
        index = torch.tensor(parts, device=norms.device)
        squares = torch.zeros(max(parts) + 1, device=norms.device, dtype=norms.dtype)
        part_norms = squares.index_add_(0, index, norms**2).sqrt()
        factors = (self._limits(part_norms) / (part_norms + TINY)).clamp(max=1.0)
        return factors[index]

    def _limits(self, part_norms: Tensor) -> Tensor | float:
        if not isinstance(self.max_norm, Sequence):
            return self.max_norm
        if len(self.max_norm) < len(part_norms):
            raise ValueError(
                f"max_norm has {len(self.max_norm)} values for {len(part_norms)} parameter groups: give one for each."
            )
        return torch.tensor(self.max_norm, device=part_norms.device, dtype=part_norms.dtype)[: len(part_norms)]


class ClipAdaptive(Clip):
    """Shorten the gradient to a quantile of the norms this run has had; the first `warmup` steps pass as they are."""

    def __init__(self, quantile: float = 0.9, *, history: int = 256, warmup: int = 20) -> None:
        if not 0 < quantile < 1:
            raise ValueError(f"ClipAdaptive(quantile=...) must be between 0 and 1, not {quantile}.")
        if not 0 < warmup <= history:
            raise ValueError(f"ClipAdaptive needs 0 < warmup <= history, not warmup={warmup} and history={history}.")
        self.quantile, self.history, self.warmup = quantile, history, warmup
        self._norms: Tensor | None = None
        self._seen = 0
        self._limit: Tensor | None = None

    @property
    def limit(self) -> Tensor | None:
        return self._limit

    def factor(self, norms: Tensor, total: Tensor, known: float | None, places: FindPlaces) -> Tensor | None:
        if self._norms is None:
            self._norms = torch.full((self.history,), math.nan, device=total.device)
        self._limit = torch.nanquantile(self._norms, self.quantile) if self._seen >= self.warmup else None
        # What is not finite becomes NaN, which the quantile passes over: no need to fetch it.
        self._norms[self._seen % self.history] = torch.where(total.isfinite(), total, math.nan)
        self._seen += 1
        return None if self._limit is None else shortened(total, known, self._limit)

    def state_dict(self) -> dict[str, Any]:
        return {"norms": None if self._norms is None else self._norms.clone(), "seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms = None if state["norms"] is None else state["norms"].clone()
        self._seen = state["seen"]


class ClipValue:
    """Clip every element to `[-limit, limit]`. This turns the gradient; `ClipNorm` only shortens it."""

    def __init__(self, limit: float) -> None:
        if not limit > 0:
            raise ValueError(f"ClipValue(limit) must be above 0, not {limit}.")
        warnings.warn(
            "ClipValue changes the direction of the gradient; use ClipNorm unless you mean that.",
            UserWarning,
            stacklevel=2,
        )
        self.value = limit


def shortened(total: Tensor, known: float | None, limit: float | Tensor) -> Tensor | None:
    """The factor that brings a norm to its limit, or None where the host knows that it is below; nothing is fetched."""
    if known is not None and not isinstance(limit, Tensor) and known + TINY <= limit:
        return None
    return (limit / (total + TINY)).clamp(max=1.0)


def suggest_max_norm(norms: Iterable[float | None], quantile: float = 0.95) -> float:
    """A `max_norm` that clips the outliers of a run and leaves its ordinary steps alone, from the norms it has had."""
    finite = sorted(norm for norm in norms if norm is not None and math.isfinite(norm))
    if not finite:
        raise ValueError("suggest_max_norm() needs the norms of some steps; none of those given is finite.")
    if not 0 < quantile <= 1:
        raise ValueError(f"suggest_max_norm(quantile=...) must be between 0 and 1, not {quantile}.")
    value = finite[math.ceil(quantile * len(finite)) - 1]
    if value == 0:
        raise ValueError(
            "suggest_max_norm() was given gradients of norm 0: nothing is learned, so there is nothing to clip."
        )
    step = 10.0 ** (math.floor(math.log10(value)) - 1)  # two digits are all a threshold deserves
    return float(f"{math.ceil(value / step * (1 - 1e-9)) * step:.2g}")
