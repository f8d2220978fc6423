"""How low a loss can go on given targets, and what it costs to answer every example alike.

`floor` knows label smoothing, soft targets, and equal inputs whose targets differ; `apart` is the floor if no two of
them were equal, and `conflicting` counts the examples that raise it. `constant` is the loss of the best answer that
does not depend on the input. Each is None where that cannot be said.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.observers.losses import NAMES, class_axis
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES

LARGEST = 2**22
"""Numbers in a target that is looked at."""
MOST_GROUPS = 512
_PARAMETERS = {name: tuple(inspect.signature(getattr(F, name)).parameters) for name in NAMES}

Goal = dict[str, Any]
Groups = list[Tensor]


def goal(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, rows: Tensor | None) -> Goal | None:
    """What is known of one loss call; `rows` numbers the examples so that equal inputs have equal numbers."""
    given = dict(zip(_PARAMETERS[name], args, strict=False)) | kwargs
    scores, target = given.get("input"), given.get("target")
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or not isinstance(result, Tensor):
        return None
    if not result.requires_grad:
        return None
    found: Goal = {"loss": name, "value": value_of(result), "targets": target.numel()}
    found |= {"examples": len(target) if target.dim() else 1, "conflicting": 0}
    found |= dict.fromkeys(("floor", "constant", "apart"))
    if 0 < target.numel() <= LARGEST:
        times = _times(given, scores, target)
        known = None if times is None else _levels(name, given, scores.detach(), target.detach(), rows)
        if known is not None and times is not None:
            found["floor"], found["constant"] = (None if level is None else level * times for level in known)
            apart = _levels(name, given, scores.detach(), target.detach(), None)
            found["apart"] = None if apart is None or apart[0] is None else apart[0] * times
            found["conflicting"] = _conflicting(target.detach(), rows)
    return found


def _conflicting(target: Tensor, rows: Tensor | None) -> int:
    """Examples whose input is equal to that of another with a different target."""
    groups = _groups(rows, len(target)) if target.dim() else None
    table = target.reshape(len(target), -1).cpu() if groups else None
    return sum(len(one) for one in groups or () if table is not None and bool((table[one] != table[one[:1]]).any()))


def value_of(result: Tensor) -> float | None:
    """The loss as one number; the mean of one that was not reduced."""
    value = float(result.detach().float().mean()) if result.numel() else math.nan
    return value if math.isfinite(value) else None


def equal_rows(tensors: Iterable[Tensor]) -> Tensor | None:
    """The examples of a batch, numbered so that those with equal inputs have equal numbers."""
    alike = [tensor for tensor in tensors if tensor.dim() and not tensor.is_sparse and tensor.numel() <= LARGEST]
    if not alike or len({len(tensor) for tensor in alike}) != 1 or len(alike[0]) == 0:
        return None
    table = torch.cat([tensor.detach().reshape(len(tensor), -1).double().cpu() for tensor in alike], 1)
    return torch.unique(table, dim=0, return_inverse=True)[1] if table.shape[1] else None


def _times(given: dict[str, Any], scores: Tensor, target: Tensor) -> float | None:
    """From the mean over all targets to what the call returns."""
    if given.get("reduce") is False or given.get("size_average") is False:
        return None
    reduction = given.get("reduction", "mean")
    if reduction in ("mean", "none"):
        return 1.0
    by_class = target.is_floating_point() and target.shape == scores.shape and given.get("label_smoothing") is not None
    if reduction == "sum" and not by_class and int(given.get("ignore_index", -100)) == -100:
        return float(target.numel())
    return None


def _levels(
    name: str, given: dict[str, Any], scores: Tensor, target: Tensor, rows: Tensor | None
) -> tuple[float | None, float | None] | None:
    weighted = given.get("weight") is not None or given.get("pos_weight") is not None
    if name in CLASS_LOSSES:
        return _of_classes(given, scores, target, rows, weighted)
    if name == "kl_div":
        return 0.0, None
    if target.numel() != scores.numel():
        return None  # broadcast, by mistake or for a reason
    groups = _groups(rows, len(target)) if target.dim() else None
    table = target.reshape(len(target), -1).double().cpu() if target.dim() else target.reshape(1, 1).double().cpu()
    cost = _binary_cost if name in BINARY_LOSSES else {"mse_loss": _squared_cost, "l1_loss": _absolute_cost}.get(name)
    if cost is None:
        return 0.0, None
    if name in BINARY_LOSSES and (weighted or bool(((table < 0) | (table > 1)).any())):
        return (0.0, None) if bool(((table == 0) | (table == 1)).all()) else None
    everyone = [torch.arange(len(table))]
    return _mean_cost(cost, table, groups), _mean_cost(cost, table, everyone)


def _mean_cost(cost: Any, table: Tensor, groups: Groups | None) -> float:
    """Of answering all examples of a group alike; of answering each as it should be where nothing groups them."""
    if groups is None:
        return float(sum(cost(row[None]) for row in table)) / len(table) if cost is _binary_cost else 0.0
    return float(sum(cost(table[members]) * len(members) for members in groups)) / len(table)


def _squared_cost(table: Tensor) -> float:
    return float(table.var(0, unbiased=False).mean())


def _absolute_cost(table: Tensor) -> float:
    return float((table - table.median(0).values).abs().mean())


def _binary_cost(table: Tensor) -> float:
    share = table.mean(0)
    return float(-(torch.xlogy(share, share) + torch.xlogy(1 - share, 1 - share)).mean())


def _of_classes(
    given: dict[str, Any], scores: Tensor, target: Tensor, rows: Tensor | None, weighted: bool
) -> tuple[float | None, float | None] | None:
    smoothing, classes = float(given.get("label_smoothing", 0.0)), scores.shape[class_axis(scores)]
    if weighted:
        return None if smoothing or target.is_floating_point() else (0.0, None)
    if target.is_floating_point():
        table = target.movedim(class_axis(target), -1).reshape(-1, classes).double().cpu()
        table = (1 - smoothing) * table + smoothing / classes
        return float(_entropies(table).mean()), float(_entropies(table.mean(0, keepdim=True)).mean())
    labels = target.reshape(-1).cpu()
    counts = labels != int(given.get("ignore_index", -100))
    if not bool(counts.any()) or bool((labels[counts] < 0).any()) or bool((labels[counts] >= classes).any()):
        return None
    groups = _groups(rows, len(labels)) if target.dim() == 1 and bool(counts.all()) else None
    labels = labels[counts]
    alone = _label_cost(labels[:1], classes, smoothing)
    floor = alone
    if groups is not None:
        floor = sum(_label_cost(labels[members], classes, smoothing) * len(members) for members in groups) / len(labels)
    return floor, _label_cost(labels, classes, smoothing)


def _label_cost(labels: Tensor, classes: int, smoothing: float) -> float:
    shares = torch.bincount(labels, minlength=classes).double() / len(labels)
    return float(_entropies(((1 - smoothing) * shares + smoothing / classes)[None])[0])


def _entropies(table: Tensor) -> Tensor:
    """Of rows that need not sum to 1."""
    total = table.sum(1, keepdim=True)
    return torch.xlogy(table, total).sum(1) - torch.xlogy(table, table).sum(1)


def _groups(rows: Tensor | None, size: int) -> Groups | None:
    """The examples with equal inputs, together; None if no two are alike."""
    if rows is None or len(rows) != size:
        return None
    count = int(rows.max()) + 1
    if count == size or count > MOST_GROUPS:
        return None
    return [torch.nonzero(rows == number).flatten() for number in range(count)]
