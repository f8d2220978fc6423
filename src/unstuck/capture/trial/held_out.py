"""Keeps one in five examples of a training out of it, and at last gives the loop nothing else.

Examples are known by their numbers: those that a DataLoader asks its data set for, or those by which a script picks
rows of several tensors of the same length. The number of an example that is kept out is replaced by one that is not,
always the same, so that inputs and targets still belong together. What is kept out are a few runs of neighbours, since
neighbours are often alike: windows of one series, frames of one video.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.internals import LoaderIterator
from unstuck.capture.trial.held_weights import HeldWeights
from unstuck.capture.trial.lab import Lab, is_data
from unstuck.capture.trial.stand_ins.boundary import boundary_of

RUNS = 5
SHARE = 0.2
FEWEST = 50
"""Examples of a data set from which some can be kept out."""
LEARNING = 3
"""Steps in which to find out which tensors are picked from together."""
MOST_KNOWN = 64


class HeldOut:
    """From step `first` on, weights are held and answers scored: to what was kept out if `unseen`, else to the rest.

    The note `held_out` says of how many examples some were kept out, and `answers` what the answers were worth.
    """

    def __init__(self, lab: Lab, first: int, unseen: bool) -> None:
        self._lab, self._first, self._unseen = lab, first, unseen
        self._places = Places(lab.stage)
        self._drawn: dict[int, Any] = {}
        """Data sets that were drawn from since the last backward."""
        self._trained: dict[int, Any] = {}
        """Those that are trained on. Kept, so that their ids stay theirs."""
        self._picked: dict[int, tuple[Tensor, list[int]]] = {}
        """Tensors that rows were picked from since the last backward, and which."""
        self._together: dict[int, Tensor] = {}
        """Tensors that are picked from by the same numbers: inputs and targets of the same examples."""
        self._maps: dict[tuple[int, bool], Tensor] = {}
        self._ahead = 2
        """Steps after `first` for which batches may have been asked for before."""
        self._largest = 0
        self._is_served = False
        """Were examples chosen by us since the last backward?"""
        self._weights = HeldWeights(lab, first)
        boundary_of(lab).counts = lambda compared: self._is_served and lab.steps >= first + self._ahead
        if LoaderIterator is not None:
            lab.wrap(LoaderIterator, "_next_index", self._asking)
        lab.wrap(Tensor, "__getitem__", self._picking)
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._before_backward)

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            wanted = original(iterator)
            dataset = getattr(iterator, "_dataset", None)
            if dataset is None or not torch.is_grad_enabled():
                return wanted
            self._drawn[id(dataset)] = dataset
            if id(dataset) not in self._trained:
                return wanted
            self._ahead = max(self._ahead, 2 + 2 * int(getattr(iterator, "_num_workers", 0) or 0))
            return self._instead(wanted, _length(dataset))

        return next_index

    def _instead(self, wanted: Any, size: int) -> Any:
        """Other examples in the place of those that are not to be met now."""
        if size < FEWEST:
            return wanted
        try:
            numbers = torch.tensor([operator.index(number) for number in (wanted if is_list(wanted) else [wanted])])
        except TypeError:  # a sampler of the script's own may ask for something else than numbers
            return wanted
        found = self._substituted(numbers, size)
        if found is None:
            return wanted
        return found.tolist() if is_list(wanted) else int(found)

    def _substituted(self, numbers: Tensor, size: int) -> Tensor | None:
        """None if these are not numbers of examples."""
        if not numbers.numel() or int(numbers.min()) < -size or int(numbers.max()) >= size:
            return None
        unseen = self._unseen and self._weights.are_held
        key = size, unseen
        if key not in self._maps:
            self._maps[key] = substitutes(size, unseen)
        self._is_served = True
        self._largest = max(self._largest, size)
        self._lab.notes["held_out"] = self._largest
        return self._maps[key].to(numbers.device)[numbers % size]

    def _picking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def getitem(tensor: Tensor, index: Any) -> Any:
            if not self._is_pick(tensor, index) or not self._places.is_users(sys._getframe(1).f_code):
                return original(tensor, index)
            if self._lab.steps < LEARNING and len(self._picked) < MOST_KNOWN:
                self._picked[id(tensor)] = tensor, index.tolist()
            if id(tensor) not in self._together or self._lab.steps < LEARNING:
                return original(tensor, index)
            with torch.no_grad():
                other = self._substituted(index, len(tensor))
            return original(tensor, index if other is None else other)

        return getitem

    @staticmethod
    def _is_pick(tensor: Tensor, index: Any) -> bool:
        """Are these rows of data, picked by their numbers?"""
        return (
            isinstance(index, Tensor)
            and index.dtype is torch.int64
            and index.dim() == 1
            and torch.is_grad_enabled()
            and is_data(tensor)
            and tensor.dim() > 0
            and len(tensor) >= FEWEST
            and index.numel() < len(tensor)
        )

    def _before_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._trained |= {key: dataset for key, dataset in self._drawn.items() if _length(dataset) >= FEWEST}
            self._drawn.clear()
            picked = list(self._picked.items())
            for key, (tensor, rows) in picked:
                same = any(
                    other != key and numbers == rows and len(one) == len(tensor) for other, (one, numbers) in picked
                )
                if same:
                    self._together[key] = tensor
            self._picked.clear()
            self._is_served = False
            return original(*args, **kwargs)

        return backward


def substitutes(size: int, unseen: bool) -> Tensor:
    """For each number of an example, which one to take instead: one that is kept out (`unseen`), or one that is not."""
    length = max(1, int(size * SHARE / RUNS))
    starts = [int((run + 0.5) * size / RUNS) - length // 2 for run in range(RUNS)]
    is_out = torch.zeros(size, dtype=torch.bool)
    for start in starts:
        is_out[start : start + length] = True
    numbers = torch.arange(size)
    if unseen:
        out = numbers[is_out]
        return torch.where(is_out, numbers, out[numbers % len(out)])
    return torch.where(is_out, (numbers + length) % size, numbers)


def is_list(value: Any) -> bool:
    """Is it a batch of numbers, and not one of them?"""
    return isinstance(value, list | tuple)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0
