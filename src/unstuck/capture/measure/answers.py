"""What the answers given to a loss are worth: the share that is right, and what the best constant answer would cost.

The targets of many calls are counted together: those of one batch say too little about a guess.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, is_whole
from unstuck.events.losses import CLASS_LOSSES, VALUE_LOSSES

BINARY_LOSSES = {"binary_cross_entropy": 0.5, "binary_cross_entropy_with_logits": 0.0}
"""By the score from which on the answer is yes."""
DISTANCES = (*VALUE_LOSSES, "gaussian_nll_loss")
LARGEST = 2**22
"""Scores that are still looked through."""
_MOST_COLUMNS = 4096
"""Of the numbers that make up the target of one example, so many are looked at, spread evenly."""
_MOST_ROWS = 1024
_FEWEST_EACH = 8
"""Labels per class, on average, from which on their entropy is known well enough."""
_FEWEST = 16


class Guess(NamedTuple):
    """What the best constant answer costs per target, and what share of the targets it gets right."""

    cost: float | None = None
    right: float | None = None


class Labels:
    """Targets that are classes."""

    def __init__(self, classes: int) -> None:
        self._counts = torch.zeros(classes, dtype=torch.float64)

    def add(self, target: Tensor, ignored: int) -> None:
        """Count these whole numbers."""
        flat = target.detach().reshape(-1).cpu()
        flat = flat[(flat != ignored) & (flat >= 0)]
        self._counts += torch.bincount(flat.long(), minlength=len(self._counts))[: len(self._counts)]

    def guess(self, given: dict[str, Any]) -> Guess:
        """For the options of one call."""
        total, present = float(self._counts.sum()), int((self._counts > 0).sum())
        if present < 2 or total < max(_FEWEST, _FEWEST_EACH * present):
            return Guess()
        shares = self._counts / total
        weight, smoothing = given.get("weight"), float(given.get("label_smoothing") or 0.0)
        right = float(shares.max())
        if isinstance(weight, Tensor):
            if smoothing or reduction_of(given) != "mean":
                return Guess(None, right)
            shares = shares * weight.detach().double().cpu()
            shares = shares / shares.sum()
        shares = (1 - smoothing) * shares + smoothing / len(shares)
        # The entropy of a sample is lower than that of what it was drawn from, by this much on average.
        return Guess(_entropy(shares) + (present - 1) / (2 * total), right)


class Distributions:
    """Targets that are probabilities of classes, one row each."""

    def __init__(self, classes: int) -> None:
        self._total = torch.zeros(classes, dtype=torch.float64)
        self._entropy, self._rows, self._hardest = 0.0, 0, torch.zeros(classes, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Count these rows."""
        table = rows.detach().double().cpu()
        self._total += table.sum(0)
        self._entropy += float(-torch.xlogy(table, table).sum())
        self._rows += len(table)
        self._hardest += torch.bincount(table.argmax(1), minlength=len(self._total))

    def guess(self, smoothing: float = 0.0, relative: bool = False) -> Guess:
        """`relative`: what is beyond the entropy of the targets themselves, as in `kl_div`."""
        if self._rows < _FEWEST:
            return Guess()
        mean = self._total / self._rows
        cost = _entropy((1 - smoothing) * mean + smoothing / len(mean))
        cost -= self._entropy / self._rows if relative else 0.0
        return Guess(cost if cost > 1e-9 else None, float(self._hardest.max()) / self._rows)


class Numbers:
    """Targets that are numbers, in columns: each place in the target of an example has a best constant of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None
        self._kept: list[Tensor] = []
        self._every, self._seen = 1, 0
        self._shape: tuple[int, ...] = ()
        """Of the target of one example."""

    def add(self, target: Tensor, sampled: bool) -> None:
        """Take in these targets; `sampled`: some rows are kept, for a median."""
        table, self._shape = _table(target), tuple(target.shape[1:])
        count, mean = len(table), table.mean(0)
        squares = (table - mean).square().sum(0)
        if self._mean is None or self._squares is None:
            self._count, self._mean, self._squares = count, mean, squares
        else:
            whole, apart = self._count + count, mean - self._mean
            self._squares = self._squares + squares + apart.square() * (self._count * count / whole)
            self._mean, self._count = self._mean + apart * (count / whole), whole
        if sampled:
            self._keep(table)

    def _keep(self, table: Tensor) -> None:
        """Every so manyth row, fewer the more there are."""
        chosen = table[(-self._seen) % self._every :: self._every]
        self._seen += len(table)
        self._kept += list(chosen[:_MOST_ROWS, :64])
        while len(self._kept) > _MOST_ROWS:
            self._kept, self._every = self._kept[::2], 2 * self._every

    def guess(self, name: str, given: dict[str, Any]) -> Guess:
        """For the options of one call."""
        if self._mean is None or self._squares is None or self._count < _FEWEST:
            return Guess()
        variances = self._squares / self._count
        if not bool(torch.isfinite(variances).all()) or float(variances.max()) <= 1e-12:
            return Guess()
        if name in BINARY_LOSSES:
            return self._binary(given)
        if name == "mse_loss":
            return Guess(float(variances.mean()))
        if name == "gaussian_nll_loss":
            floor = float(given.get("eps") or 1e-6)
            cost = float((0.5 * (1 + variances.clamp_min(floor).log())).mean())
            return Guess(cost + (0.5 * math.log(2 * math.pi) if given.get("full") else 0.0))
        return Guess(self._absolute(name, given))

    def _binary(self, given: dict[str, Any]) -> Guess:
        mean = self._mean
        if mean is None or given.get("weight") is not None or float(mean.min()) < 0 or float(mean.max()) > 1:
            return Guess()
        right = float(torch.maximum(mean, 1 - mean).mean())
        yes = mean
        positive = given.get("pos_weight")
        if isinstance(positive, Tensor):
            try:
                each = _table(positive.detach().expand(1, *self._shape))[0]
            except RuntimeError:  # it is not for these columns
                return Guess(None, right)
            yes = mean * each
        share = yes / (yes + 1 - mean).clamp_min(1e-12)
        cost = float(-(torch.xlogy(yes, share) + torch.xlogy(1 - mean, 1 - share)).mean())
        return Guess(cost if cost > 1e-9 else None, right)

    def _absolute(self, name: str, given: dict[str, Any]) -> float | None:
        """The median is best for the absolute error, and nearly so where small errors count as squares; never better
        than the best."""
        if len(self._kept) < _FEWEST:
            return None
        table = torch.stack(self._kept)
        costs = []
        for answer in (table.median(0).values, table.mean(0)):
            one = answer.expand_as(table)
            if name == "l1_loss":
                costs.append(F.l1_loss(one, table))
            elif name == "smooth_l1_loss":
                costs.append(F.smooth_l1_loss(one, table, beta=float(given.get("beta", 1.0))))
            else:
                costs.append(F.huber_loss(one, table, delta=float(given.get("delta", 1.0))))
        return min(float(cost) for cost in costs) or None


def _table(target: Tensor) -> Tensor:
    rows = target.detach().reshape(len(target) if target.dim() else 1, -1)
    return rows[:, :: -(-rows.shape[1] // _MOST_COLUMNS)].double().cpu()


def _entropy(shares: Tensor) -> float:
    return float(-torch.xlogy(shares, shares).sum())


def reduction_of(given: dict[str, Any]) -> str:
    """As torch understands it, also in the words of old."""
    if given.get("reduce") is False:
        return "none"
    return "sum" if given.get("size_average") is False else str(given.get("reduction", "mean"))


def right_answers(name: str, source: Tensor, target: Tensor, ignored: int = -100) -> tuple[Tensor, int] | None:
    """How many answers are right, and of how many; None where there are no classes. Call it where no graph is built."""
    if source.numel() > LARGEST or source.dim() == 0 or not target.numel():
        return None
    if name in CLASS_LOSSES:
        axis = 0 if source.dim() == 1 else 1
        if target.shape == source.shape and target.is_floating_point():
            return (source.argmax(axis) == target.argmax(axis)).sum(), target.numel() // source.shape[axis]
        if not is_whole(target) or target.dim() != source.dim() - 1:
            return None
        counts = target != ignored
        # On a device, counting would mean waiting for it.
        return ((source.argmax(axis) == target) & counts).sum(), int(counts.sum()) if target.is_cpu else target.numel()
    if name in BINARY_LOSSES and source.shape == target.shape:
        return ((source > BINARY_LOSSES[name]) == (target > 0.5)).sum(), target.numel()
    return None


class Answers:
    """The targets of one loss at one line, over many calls."""

    def __init__(self, name: str, classes: int) -> None:
        self.name = name
        self._labels = Labels(classes)
        self._rows = Distributions(classes)
        self._numbers = Numbers()
        self._given: dict[str, Any] = {}
        self._kind = ""

    def add(self, given: dict[str, Any], source: Tensor, target: Tensor) -> None:
        """A call was given this target."""
        # Only the options: the answers would keep their graph alive.
        self._given = {option: value for option, value in given.items() if option not in ("input", "target", "var")}
        name = self.name
        if name in CLASS_LOSSES:
            if is_whole(target):
                self._kind = "labels"
                self._labels.add(target, int(given.get("ignore_index", -100)))
            elif target.shape == source.shape and given.get("weight") is None:
                self._kind = "rows"
                self._rows.add(_rows(target))
        elif name == "kl_div":
            if target.shape == source.shape and target.dim() > 0:
                self._kind = "relative"
                self._rows.add(_rows(target.exp() if given.get("log_target") else target, axis=-1))
        elif is_plain(target) and target.dim() > 0:
            self._kind = "numbers"
            self._numbers.add(target, name in DISTANCES[1:4])

    def guess(self) -> Guess:
        """Of all calls so far."""
        if self._kind == "labels":
            return self._labels.guess(self._given)
        if self._kind == "rows":
            return self._rows.guess(float(self._given.get("label_smoothing") or 0.0))
        if self._kind == "relative":
            return Guess(self._rows.guess(relative=True).cost)
        return self._numbers.guess(self.name, self._given) if self._kind == "numbers" else Guess()

    def cost(self, source: Tensor, target: Tensor, result: Tensor) -> Tensor | None:
        """What the call returned, for one target on average."""
        reduction, value = reduction_of(self._given), result.detach().float()
        if self.name == "kl_div":
            rows = max(1, source.numel() // source.shape[-1]) if source.dim() else 1
            factor = {"batchmean": len(source) / rows if source.dim() else 1.0, "sum": 1 / rows}
            whole = value.sum() if reduction == "none" else value
            return whole * factor.get(reduction, source.shape[-1] if reduction == "mean" else 1 / rows)
        if reduction == "mean" or (reduction == "none" and self._kind != "labels"):
            return value.mean()
        if self._kind == "labels":
            ignored = int(self._given.get("ignore_index", -100))
            return value.sum() / (target != ignored).sum().clamp_min(1)
        if self._kind == "rows":
            return value.sum() / max(1, target.numel() // target.shape[0 if target.dim() == 1 else 1])
        return value.sum() / max(1, target.numel(), source.numel())


def _rows(target: Tensor, axis: int = 1) -> Tensor:
    axis = 0 if target.dim() == 1 else axis
    return target.movedim(axis, -1).reshape(-1, target.shape[axis])
