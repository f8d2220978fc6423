"""Labels made fit for their loss, and means over what counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


def pos_weight(targets: Tensor, *, missing: float | None = None) -> Tensor:
    """Negatives per positive, for BCEWithLogitsLoss(pos_weight=...): one number, or one for each column of labels.

    A column with one kind of label only has no such number: it is refused, or given the number in `missing`.
    """
    if targets.numel() == 0:
        raise ValueError("pos_weight() was given no targets.")
    if not bool(((targets == 0) | (targets == 1)).all()):
        raise ValueError("pos_weight() needs targets that are 0 or 1.")
    columns = targets.reshape(len(targets), -1).double()
    positives = columns.sum(0)
    negatives = len(columns) - positives
    one_sided = (positives == 0) | (negatives == 0)
    if bool(one_sided.any()) and missing is None:
        which = one_sided.nonzero().flatten().tolist()
        where = f"columns {', '.join(map(str, which[:5]))}" if targets.dim() > 1 else "the targets"
        raise ValueError(
            f"In {where} all labels are the same, so there is nothing to weigh: drop them or give missing=1.0."
        )
    ratio = torch.where(one_sided, torch.full_like(positives, missing or 0.0), negatives / positives.clamp(min=1))
    return ratio.float().reshape(targets.shape[1:])


@dataclass(frozen=True)
class LabelMap:
    """The labels of a dataset in order; class i stands for `labels[i]`."""

    labels: Tensor
    ignore_index: int

    def __len__(self) -> int:
        return len(self.labels)

    def apply(self, targets: Tensor) -> Tensor:
        """The classes of some labels, as cross-entropy wants them; ignored ones stay as they are."""
        known = self.labels.to(targets.device)
        kept = targets == self.ignore_index
        place = torch.searchsorted(known, targets.contiguous()).clamp(max=max(len(known) - 1, 0))
        unknown = ~kept & (known[place] != targets) if len(known) else ~kept
        if bool(unknown.any()):
            raise ValueError(f"The label {targets[unknown][0].item()} was not among those the map was made from.")
        return torch.where(kept, torch.full_like(place, self.ignore_index), place)

    def undo(self, classes: Tensor) -> Tensor:
        """The labels of some classes."""
        kept = classes == self.ignore_index
        return torch.where(kept, classes, self.labels.to(classes.device)[torch.where(kept, 0, classes)])


def remap_labels(targets: Tensor, *, ignore_index: int = -100) -> tuple[Tensor, LabelMap]:
    """Any whole numbers as classes 0, 1, 2, ..., and the map to do the same to the validation labels."""
    if targets.is_floating_point() or targets.is_complex():
        raise ValueError(
            f"remap_labels() needs whole numbers, not {targets.dtype}: labels 1.0, 2.0 need .long() first."
        )
    labels = torch.unique(targets[targets != ignore_index])
    mapping = LabelMap(labels, ignore_index)
    return mapping.apply(targets), mapping


def masked_mean(values: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """The mean of the values the mask keeps; 0 where it keeps none. What is masked has no influence, not even NaN."""
    kept = mask.bool().expand_as(values)
    chosen = torch.where(kept, values, torch.zeros_like(values))
    if dim is None:
        return chosen.sum() / kept.sum().clamp(min=1)
    return chosen.sum(dim) / kept.sum(dim).clamp(min=1)


def per_token_loss(logits: Tensor, targets: Tensor, *, ignore_index: int = -100) -> tuple[Tensor, Tensor]:
    """Cross-entropy as a mean over the valid tokens, and how many they are: what `manager.backward(loss, count)` takes.

    `logits` has the classes in its last dimension. Without a valid token the loss is 0, not NaN.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"Logits of shape {[*logits.shape]} need targets of shape {[*logits.shape[:-1]]}, not {[*targets.shape]}."
        )
    flat = logits.reshape(-1, logits.shape[-1])
    total = functional.cross_entropy(flat, targets.reshape(-1), ignore_index=ignore_index, reduction="sum")
    count = (targets != ignore_index).sum()
    return total / count.clamp(min=1), count
