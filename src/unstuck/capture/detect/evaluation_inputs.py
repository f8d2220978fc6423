"""Compares what a model is given in evaluation with what it is given in training: columns, and how often ids occur."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.window import Watch
from unstuck.events import InputsCompared, Place

_MOST_INPUTS = 2
"""Arguments of a model that are looked at."""
_MOST_KINDS = 8
_MOST_CALLS = 40
_COLUMNS = 1024
_BUCKETS = 2**15
_FEWEST = 30
"""Examples."""
_ROWS = 512
_MOST_TARGETS = 2**15
_IDS = 2**12
_FEWEST_TARGETS = 3
"""Of an id, in each half."""


class _Numbers:
    """Sums of the columns of one input."""

    def __init__(self) -> None:
        self.count = 0
        self.sums: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        values = rows.reshape(len(rows), -1).double()
        step = -(-values.shape[1] // _COLUMNS)
        values = values[:, ::step]
        sums = torch.stack([values.sum(0), values.square().sum(0)])
        self.sums = sums if self.sums is None else self.sums + sums
        self.count += len(rows)

    def moments(self) -> tuple[Tensor, Tensor]:
        assert self.sums is not None
        mean, square = self.sums / self.count
        return mean, (square - mean.square()).clamp_min(0).sqrt()


class _Ids:
    """How often each id came, or in sequences each pair of neighbours; examples alternate between two halves."""

    def __init__(self) -> None:
        self.count = 0
        self.halves = torch.zeros(2, _BUCKETS)

    def add(self, rows: Tensor) -> None:
        ids = rows.reshape(len(rows), -1).long()
        if ids.shape[1] > 1:
            first, second = ids[:, :-1], ids[:, 1:]
            ids = (first * 8191 + second).masked_fill(first == second, -1)  # runs of padding say nothing
        for half in (0, 1):
            chosen = ids[half::2].reshape(-1)
            self.halves[half] += torch.bincount(chosen[chosen >= 0] % _BUCKETS, minlength=_BUCKETS).float()
        self.count += len(rows)


class _Targets:
    """Sums over the examples of each id, in two halves: how many there are, of targets and of their squares."""

    def __init__(self) -> None:
        self.halves = torch.zeros(2, 3, _IDS, dtype=torch.double)
        self.agreement = torch.zeros(6, dtype=torch.double)
        """How many answers, and the sums of answers, targets, their squares and their products."""

    def add(self, ids: Tensor, targets: Tensor, answers: Tensor) -> None:
        buckets, wanted = ids[:_MOST_TARGETS].long() % _IDS, targets[:_MOST_TARGETS].double()
        given = answers[:_MOST_TARGETS].double()
        for half in (0, 1):
            of_half = wanted[half::2]
            for row, values in enumerate((torch.ones_like(of_half), of_half, of_half.square())):
                self.halves[half, row] += torch.bincount(buckets[half::2], weights=values, minlength=_IDS)
        parts = (torch.ones_like(wanted), given, wanted, given.square(), wanted.square(), given * wanted)
        self.agreement += torch.stack([part.sum() for part in parts])

    def fit(self) -> float:
        """How far the answers agree with the targets."""
        count, given, wanted, given_squared, wanted_squared, products = self.agreement.tolist()
        spread = (given_squared - given**2 / count) * (wanted_squared - wanted**2 / count)
        return (products - given * wanted / count) / math.sqrt(spread) if spread > 0 else 0.0


class EvaluationInputs:
    """What each model was given in training and in evaluation so far."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: dict[tuple[str, str, tuple[int, ...]], tuple[_Numbers | _Ids, _Numbers | _Ids]] = {}
        self._calls: dict[tuple[str, bool], int] = {}
        self._places: dict[str, Place | None] = {}
        self._marks: set[tuple[Any, ...]] = set()
        self._ids: dict[tuple[str, str, tuple[int, ...]], Tensor] = {}
        """What the last call looked up, until a loss gives the targets."""
        self._evaluates = False
        self._targets: dict[tuple[str, str, tuple[int, ...]], dict[tuple[str, int], _Targets]] = {}
        """By loss; in training (0), and in calls of each size in evaluation: whole splits may be evaluated in turn."""

    def wants(self, model: str, evaluates: bool) -> bool:
        """Has it not been called often enough yet?"""
        return self._calls.get((model, evaluates), 0) < _MOST_CALLS and may_measure()

    def given(self, model: str, inputs: list[tuple[str, Tensor]], place: Place | None, evaluates: bool) -> None:
        """A model was called with these."""
        self._calls[model, evaluates] = self._calls.get((model, evaluates), 0) + 1
        if evaluates:
            self._places.setdefault(model, place)
        self._ids, self._evaluates = {}, evaluates
        with reading():
            for name, tensor in inputs[:_MOST_INPUTS]:
                self._add((model, name, tuple(tensor.shape[1:])), tensor.detach(), evaluates)

    def _add(self, key: tuple[str, str, tuple[int, ...]], tensor: Tensor, evaluates: bool) -> None:
        ids = is_whole(tensor) and tensor.dtype != torch.bool
        if not tensor.is_cpu or tensor.dim() == 0 or not tensor.numel() or not (ids or is_plain(tensor)):
            return
        if key not in self._seen:
            if evaluates or len(self._seen) >= _MOST_KINDS:
                return
            self._seen[key] = (_Ids(), _Ids()) if ids else (_Numbers(), _Numbers())
        seen = self._seen[key][evaluates]
        if isinstance(seen, _Ids) is not ids:
            return
        if ids and tensor[0].numel() == 1 and len(tensor) > 1:
            self._ids[key] = tensor.reshape(-1)
        rows = tensor[:: -(-len(tensor) // _ROWS)]  # from all of it: a whole split may be sorted
        if evaluates:
            mark = (*key, len(tensor), float(rows[0].double().sum()), float(rows[-1].double().sum()))
            if mark in self._marks:
                self._ids.pop(key, None)
                return  # the same examples again, in a later evaluation
            self._marks.add(mark)
        seen.add(rows)

    def forget(self) -> None:
        """A model was called, and nobody looked: the targets that follow are not those of the ids before."""
        self._ids = {}

    def compared(self, loss: str, source: Tensor, target: Tensor) -> None:
        """A loss was given the answers and the targets of the call before."""
        ids = self._ids
        if not ids or self._evaluates == torch.is_grad_enabled() or not target.is_cpu or not may_measure():
            return
        if not is_plain(source) or not (is_plain(target) or is_whole(target)):
            return
        with reading():
            answers = source.detach()
            answers = answers.argmax(1) if answers.numel() != target.numel() and answers.dim() == 2 else answers
            for key, each in ids.items():
                if not len(each) == target.numel() == answers.numel() or int(each.min()) < 0:
                    continue
                known = self._targets.setdefault(key, {})
                split = (loss, len(each) if self._evaluates else 0)
                if split in known or len(known) < _MOST_KINDS:
                    known.setdefault(split, _Targets()).add(each, target.detach().reshape(-1), answers.reshape(-1))

    def finish(self) -> None:
        """The run ended."""
        for key, (trained, evaluated) in self._seen.items():
            model, name, shape = key
            if min(trained.count, evaluated.count) < _FEWEST:
                continue
            event = InputsCompared(
                step=self._watch.window.steps,
                place=self._places.get(model),
                model=model,
                input=name,
                shape=shape,
                trained=trained.count,
                evaluated=evaluated.count,
            )
            with reading():
                if isinstance(trained, _Ids) and isinstance(evaluated, _Ids):
                    self._watch.tell(_with_targets(_with_ids(event, trained, evaluated), self._targets.get(key, {})))
                elif isinstance(trained, _Numbers) and isinstance(evaluated, _Numbers):
                    self._watch.tell(_with_numbers(event, trained, evaluated))


def _with_numbers(event: InputsCompared, trained: _Numbers, evaluated: _Numbers) -> InputsCompared:
    (mean, spread), (other_mean, other_spread) = trained.moments(), evaluated.moments()
    moving = spread > 1e-6 * spread.max().clamp_min(1e-30)
    if not bool(moving.any()):
        return event
    ratios = (other_spread / spread)[moving]
    shifts = ((other_mean - mean).abs() / spread)[moving]
    centered = moving & (mean.abs() > 0.2 * spread)
    means = (other_mean / mean)[centered]
    quantiles = torch.quantile(ratios, torch.tensor([0.1, 0.5, 0.9], dtype=ratios.dtype)).tolist()
    return msgspec.structs.replace(
        event,
        columns=int(moving.sum()),
        scales=tuple(float(f"{value:.4g}") for value in quantiles),
        means=float(means.median()) if len(means) else None,
        shift=float(shifts.median()),
    )


def _with_ids(event: InputsCompared, trained: _Ids, evaluated: _Ids) -> InputsCompared:
    one, other = evaluated.halves
    whole = trained.halves.sum(0)
    used = (one + other + whole) > 0
    rows = torch.stack([one, other, whole])[:, used].log1p().double()
    if rows.shape[1] < 3:
        return event
    among = torch.corrcoef(rows)
    alike, across = float(among[0, 1]), float((among[0, 2] + among[1, 2]) / 2)
    return msgspec.structs.replace(event, columns=rows.shape[1], alike=alike, across=across)


def _with_targets(event: InputsCompared, targets: dict[tuple[str, int], _Targets]) -> InputsCompared:
    """Does an id go with the same targets in evaluation as in training? Of several splits, where it does least."""
    pairs = [(targets.get((loss, 0)), each) for (loss, size), each in targets.items() if size]
    known = [one for trained, each in pairs if trained is not None and (one := _alike(trained, each)) is not None]
    if not known:
        return event
    ids, across, within, answers = min(known, key=lambda one: abs(one[1]) - one[2])
    return msgspec.structs.replace(
        event, with_target=ids, same_target=across, same_target_within=within, answers_fit=answers
    )


def _alike(trained: _Targets, evaluated: _Targets) -> tuple[int, float, float, float] | None:
    """How many ids came in both, how far the mean target of an id in training agrees with the targets of its examples
    in evaluation, how far with those of the other half of training, and how far answers agree in evaluation."""
    known = trained.halves[:, 0].amin(0) >= _FEWEST_TARGETS
    there = evaluated.halves.sum(0)
    both = int((known & (there[0] > 0)).sum())
    if both < _FEWEST:
        return None
    first, second = trained.halves
    across = _agreement(trained.halves.sum(0)[:, known], there[:, known])
    within = (_agreement(first[:, known], second[:, known]) + _agreement(second[:, known], first[:, known])) / 2
    return both, across, within, evaluated.fit()


def _agreement(means_of: Tensor, examples: Tensor) -> float:
    """The correlation, over all examples, of their targets with the mean of their id elsewhere."""
    count, sums, squares = examples
    mean = means_of[1] / means_of[0]
    total = float(count.sum())
    center, wanted = float((count * mean).sum()) / total, float(sums.sum()) / total
    spread = float((count * (mean - center).square()).sum()) * (float(squares.sum()) - total * wanted**2)
    return float(((mean - center) * (sums - count * wanted)).sum()) / math.sqrt(spread) if spread > 0 else 0.0
