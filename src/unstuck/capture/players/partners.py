"""Observes contrastive losses: who is the right partner of an example, and how near it is."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Watch
from unstuck.events import PairsMatched, Place, Scored, TripletsCompared

_FILLED = 1e3
"""A score that many times as far from 0 as the others was filled in."""
_FEWEST = 8
"""Examples in a batch."""
_LARGEST = 2**22
_MOST_LOOKS = 400
_TRIPLETS = inspect.signature(F.triplet_margin_loss)


class Partners:
    """Follows cross-entropies over the examples of a batch, and triplets."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._looks = 0

    def attach(self, patches: Patches) -> None:
        """Modules call the function too."""
        patches.around(F, "triplet_margin_loss", self._before, self._after, skip=self._watch.window.is_resting)

    def matched(self, scores: Tensor, partners: Tensor, place: Place | None) -> None:
        """A cross-entropy was computed. It is one over partners if each example has its own."""
        if scores.dim() != 2 or partners.dim() != 1 or not is_plain(scores) or not is_whole(partners):
            return
        count, size = scores.shape
        if not _FEWEST <= count <= size or scores.numel() > _LARGEST or not scores.is_cpu or self._looks >= _MOST_LOOKS:
            return
        with reading():
            labels = partners.detach().long()
            if int(labels.min()) < 0 or int(labels.max()) >= size or not _are_partners(labels, size):
                return
            self._looks += 1
            event = self._event(scores.detach(), labels, place)
            if event is not None:
                self._watch.tell(event)

    def _event(self, scores: Tensor, labels: Tensor, place: Place | None) -> PairsMatched | None:
        count, size = scores.shape
        rows = torch.arange(count)
        right = scores[rows, labels].double()
        others = scores.clone()
        others[rows, labels] = torch.nan
        # Scores that are filled in, such as -1e9 for an example with itself, are no scores.
        whole = torch.isfinite(scores)
        if not whole.any():
            return None
        real = whole & (scores.abs() <= _FILLED * scores[whole].abs().median().clamp_min(1.0))
        finite = others[real & torch.isfinite(others)].double()
        if len(finite) < _FEWEST:
            return None
        low, high = float(scores[real].min()), float(scores[real].max())
        # Where the highest score is, seen from the right partner. That of an example with itself does not count.
        best = scores.clone()
        if count == size:
            best[rows, rows] = -torch.inf
        highest = best.argmax(1)
        away = (highest - rows) % size
        offset = int(away.mode().values)
        same = bool((((labels - rows) % size) == offset).any())
        neighbour = rows ^ 1
        is_by_neighbours = count != size or count % 2 == 1 or bool((labels == neighbour).any())
        return PairsMatched(
            step=self._watch.window.steps,
            place=place,
            examples=count,
            partners=size,
            right=float(right.mean()),
            right_spread=float(right.std()),
            others=float(finite.mean()),
            others_spread=float(finite.std()),
            low=low,
            high=high,
            elsewhere=0.0 if same else float((away == offset).double().mean()),
            offset=offset,
            found=float((highest == labels).double().mean()),
            neighbours=0.0 if is_by_neighbours else float((highest == neighbour).double().mean()),
        )

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        listening = self._watch.window.sampled and self._watch.is_listening() and may_measure()
        return (args, kwargs) if listening and self._looks < _MOST_LOOKS else None

    def _after(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if error is not None or not isinstance(result, Tensor) or not result.requires_grad:
            return
        given = _TRIPLETS.bind(*call[0], **call[1]).arguments
        three = [given[name] for name in ("anchor", "positive", "negative")]
        if not all(is_plain(one) and one.dim() == 2 and one.is_cpu for one in three):
            return
        if len({one.shape for one in three}) != 1 or len(three[0]) < _FEWEST:
            return
        self._looks += 1
        margin, place = float(given.get("margin", 1.0)), self._watch.places.here()
        with reading():
            anchor, positive, negative = (one.detach().double() for one in three)
            self._watch.tell(
                TripletsCompared(
                    step=self._watch.window.steps,
                    place=place,
                    margin=margin,
                    value=float(result) if result.numel() == 1 else None,
                    same=float((anchor == positive).all(1).double().mean()),
                    positive=float((anchor - positive).norm(dim=1).mean()),
                    negative=float((anchor - negative).norm(dim=1).mean()),
                )
            )
            if result.numel() == 1 and str(given.get("reduction", "mean")) == "mean" and margin > 0:
                # One embedding for all examples costs the margin.
                self._watch.tell(
                    Scored(
                        step=self._watch.window.steps,
                        place=place,
                        loss="triplet_margin_loss",
                        cost=float(result),
                        guess=margin,
                        labels=len(anchor),
                    )
                )


def _are_partners(labels: Tensor, size: int) -> bool:
    """Does each example have a partner of its own, by its place in the batch? Classes may differ by chance."""
    count = len(labels)
    if bool((labels.sort().values.diff() == 0).any()):
        return False
    away = (labels - torch.arange(count)) % size
    return count == size or int((away.sort().values.diff() != 0).sum()) <= 1
