"""Takes in the examples of a data set, batch by batch, and keeps of them what comparisons need: bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.data_sets import digests
from unstuck.capture.trial.example_features import whole, whole_ids
from unstuck.findings.data_sets import Part

MOST_FEATURES = 128
"""Numbers that stand for an example."""
MOST_WITH_FEATURES = 100_000
MOST_IN_PARTS = 20_000
"""Examples of which the parts are known one by one."""
MOST_AT_ONCE = 2**22
"""Numbers of a batch that are looked at together: several copies of them are made."""
MOST_RAW = 5_000
MOST_COLUMNS = 4096
MOST_NUMBERS = 2**23
"""Kept as they are."""
MOST_STEPS = 2**22
"""Steps of series that are known one by one."""
SHORTEST_SERIES = 8
MOST_IDS = 2**20
TABLE = 512
"""Columns up to which rows of numbers are a table."""
STRUCTURE = re.compile(r"mask|length|lens|token_type|position_ids", re.I)
"""Names of tensors that say how to read the others."""
MOST_CLASSES = 1000
SHOWN = 6


class Rows:
    """Rows that are added one batch after the other, in memory of their own: small tensors that are kept between large
    ones that are not would keep the memory of these."""

    def __init__(self) -> None:
        self._held: Tensor | None = None
        self._size = 0
        self._fits = True

    def append(self, rows: Tensor) -> None:
        """More of them. Rows of another shape spoil them all."""
        if self._held is None:
            self._held = rows.new_empty(max(1024, len(rows)), *rows.shape[1:])
        self._fits &= rows.shape[1:] == self._held.shape[1:]
        if not self._fits:
            return
        end = self._size + len(rows)
        if end > len(self._held):
            larger = self._held.new_empty(max(end, 2 * len(self._held)), *rows.shape[1:])
            larger[: self._size] = self._held[: self._size]
            self._held = larger
        self._held[self._size : end] = rows
        self._size = end

    def known(self) -> Tensor | None:
        """None if there are none, or they do not fit together."""
        return self._held[: self._size] if self._held is not None and self._fits else None

    def whole(self) -> Tensor:
        """Of rows that are single numbers."""
        found = self.known()
        return torch.zeros(0, dtype=torch.int64) if found is None else found


class Known(NamedTuple):
    """What is known of all examples that were read, in the order of their numbers."""

    numbers: Tensor
    digest: Tensor
    blank: Tensor
    """Is it one value throughout?"""
    labels: Tensor | None
    values: Tensor | None
    """Targets that are numbers."""
    featured: Tensor
    """Positions of the examples that have features,"""
    features: Tensor | None
    parted: Tensor
    """parts,"""
    blocks: Tensor | None
    raw_at: Tensor
    """and raw numbers."""
    raw: Tensor | None
    steps: Tensor | None
    """Of the first examples with parts: each step of a series."""
    has_ids: bool
    """Are there inputs that are names of things, so that distances mean nothing?"""
    other_numbers: Tensor
    other_digest: Tensor
    """Of examples that come out different each time, as they came out other times."""


class Gathered:
    """The examples of one data set. They come in any order, each with its number."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.read = 0
        self._parts: dict[str, _PartRead] = {}
        self._numbers = Rows()
        self._digests = Rows()
        self._blank = Rows()
        self._targets = Rows()
        self._features = Rows()
        self._blocks = Rows()
        self._raw = Rows()
        self._steps = Rows()
        self._numbers_kept = self._steps_kept = 0
        self._has_steps = True
        self._has_ids = False
        self._padding: dict[str, digests.Padding | None] = {}
        self._others = Rows()
        self._other_numbers = Rows()

    def add(self, batch: Mapping[str, Tensor], numbers: Sequence[int]) -> None:
        """One batch: tensors by name, with the examples on the first axis."""
        largest = max((tensor.numel() for tensor in batch.values()), default=0)
        if largest > MOST_AT_ONCE and len(numbers) > 1:
            half = len(numbers) // 2
            for part in (slice(0, half), slice(half, None)):
                self.add({name: tensor[part] for name, tensor in batch.items()}, numbers[part])
            return
        size = len(numbers)
        parts = {name: tensor.detach().cpu() for name, tensor in batch.items()}
        for name, tensor in parts.items():
            known = self._parts.setdefault(name, _PartRead(name, name == self.target))
            known.add(tensor)
        inputs = {name: tensor for name, tensor in parts.items() if name != self.target}
        read = {name: tensor for name, tensor in inputs.items() if not STRUCTURE.search(name)} or inputs
        self._numbers.append(torch.tensor(list(numbers)))
        if not self.read:
            self._padding = {name: digests.padding_of(tensor) for name, tensor in read.items()}
        blocks = [digests.blocks(tensor, self._padding.get(name)) for name, tensor in read.items()]
        self._digests.append(_together(blocks, size))
        self._has_ids |= any(_is_of_ids(tensor) for tensor in read.values())
        self._blank.append(torch.stack([_is_blank(tensor) for tensor in read.values()]).all(0))
        if self.target in parts:
            self._targets.append(parts[self.target].reshape(size, -1))
        self._keep(list(read.values()), blocks, size)
        self.read += size

    def add_again(self, batch: Mapping[str, Tensor], numbers: Sequence[int]) -> None:
        """The same examples, as they came out another time."""
        inputs = {name: tensor.detach().cpu() for name, tensor in batch.items() if name != self.target}
        read = {name: tensor for name, tensor in inputs.items() if not STRUCTURE.search(name)} or inputs
        self._others.append(
            _together([digests.blocks(tensor, self._padding.get(name)) for name, tensor in read.items()], len(numbers))
        )
        self._other_numbers.append(torch.tensor(list(numbers)))

    def _keep(self, read: list[Tensor], blocks: list[Tensor], size: int) -> None:
        if self.read < MOST_IN_PARTS:
            together = torch.cat(blocks, 1)
            self._blocks.append(together)
            steps = _steps(read[0])
            self._has_steps &= steps is not None and self._steps_kept + steps.numel() <= MOST_STEPS
            if steps is not None and self._has_steps:
                self._steps.append(steps)
                self._steps_kept += steps.numel()
        if self.read < MOST_WITH_FEATURES:
            width = max(1, MOST_FEATURES // len(read))
            self._features.append(torch.cat([_features(tensor, width) for tensor in read], 1))
        if self.read < MOST_RAW and self._numbers_kept < MOST_NUMBERS:
            width = sum(tensor[0].numel() for tensor in read)
            wide = torch.float64 if read[0].dtype == torch.float64 else torch.float32
            flat = torch.cat([tensor.reshape(size, -1) for tensor in read], 1) if len(read) > 1 else read[0]
            raw = flat.reshape(size, -1)[:, :: max(1, -(-width // MOST_COLUMNS))].to(wide)
            self._raw.append(raw)
            self._numbers_kept += raw.numel()

    def known(self) -> Known | None:
        """All of it, in the order of the numbers of the examples; None if there is nothing."""
        if not self.read:
            return None
        numbers = self._numbers.whole()
        order = numbers.argsort(stable=True)
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order))
        features, blocks, raw = self._features.known(), self._blocks.known(), self._raw.known()
        labels, values = self._labels(order)
        steps = self._steps.known()
        return Known(
            numbers[order],
            self._digests.whole()[order],
            self._blank.whole()[order],
            labels,
            values,
            position[: 0 if features is None else len(features)],
            features,
            position[: 0 if blocks is None else len(blocks)],
            blocks,
            position[: 0 if raw is None else len(raw)],
            raw,
            steps if blocks is not None and steps is not None and len(steps) <= len(blocks) else None,
            self._has_ids,
            self._other_numbers.whole(),
            self._others.whole(),
        )

    def _labels(self, order: Tensor) -> tuple[Tensor | None, Tensor | None]:
        found = self._targets.known()
        if found is None or len(found) != self.read or found.shape[1] != 1:
            return None, None
        target = found[order, 0]
        if not target.is_floating_point():
            kinds = torch.unique(target)
            return (target.long(), None) if len(kinds) <= MOST_CLASSES else (None, target.double())
        kinds = torch.unique(target)
        is_binary = len(kinds) == 2 and bool((kinds == kinds.round()).all())  # a yes or no; others may be ratings
        return (target.long(), None) if is_binary else (None, target.double())

    def facts(self) -> tuple[Part, ...]:
        """Of each tensor."""
        return tuple(part.facts() for part in self._parts.values())

    def moments(self, name: str) -> tuple[Tensor, Tensor, int] | None:
        """Mean and deviation of each column of an input of numbers, and over how many examples."""
        part = self._parts.get(name)
        return part.moments() if part is not None else None

    @property
    def inputs(self) -> list[str]:
        """The names of its inputs."""
        return [name for name in self._parts if name != self.target and not STRUCTURE.search(name)]


class _PartRead:
    """One tensor of each example: running sums."""

    def __init__(self, name: str, is_target: bool) -> None:
        self._name, self._is_target = name, is_target
        self._dtype = ""
        self._shape: tuple[int, ...] | None = None
        self._low, self._high = math.inf, -math.inf
        self._broken = self._total = self._count = 0
        self._sums: Tensor | None = None
        self._lows = self._highs = self._holes = torch.zeros(0)
        self._step = 1
        self._floats = False
        self._ids: set[int] | None = set()
        self._padding: digests.Padding | None = None
        self._lengths: list[Tensor] = []
        self._padded = self._positions = 0

    def add(self, tensor: Tensor) -> None:
        shape = tuple(tensor.shape[1:])
        self._dtype = self._dtype or str(tensor.dtype).removeprefix("torch.")
        first = self._shape is None
        known = shape if self._shape is None else self._shape
        self._shape = (
            tuple(a if a == b else -1 for a, b in zip(known, shape, strict=True)) if len(known) == len(shape) else ()
        )
        flat = tensor.reshape(len(tensor), -1)
        self._count += len(tensor)
        self._total += flat.numel()
        self._floats |= tensor.is_floating_point()
        if not flat.numel():
            return
        if not tensor.is_floating_point():
            self._add_ids(tensor, flat)
        if first:
            self._step = -(-flat.shape[1] // MOST_COLUMNS)
        if -1 in self._shape or (not first and self._sums is None):
            self._sums = None
        self._add_numbers(flat, first)

    def _add_ids(self, tensor: Tensor, flat: Tensor) -> None:
        if self._ids is not None:
            self._ids.update(torch.unique(flat)[:MOST_IDS].tolist())
            self._ids = self._ids if len(self._ids) < MOST_IDS else None
        if self._count == len(tensor):
            self._padding = digests.padding_of(tensor)
        if self._padding is not None and tensor.dim() == 2:
            away = self._padding.mask(flat)
            self._lengths.append((~away).sum(1))
            self._padded += int(away.sum())
            self._positions += flat.numel()

    def _add_numbers(self, flat: Tensor, first: bool) -> None:
        finite = torch.isfinite(flat) if flat.is_floating_point() else torch.ones_like(flat, dtype=torch.bool)
        whole = bool(finite.all())
        self._broken += 0 if whole else int((~finite).sum())
        some = flat if whole else flat[finite]
        if some.numel():
            self._low, self._high = min(self._low, float(some.min())), max(self._high, float(some.max()))
        there = finite[:, :: self._step]
        columns = torch.where(there, flat[:, :: self._step].double(), torch.zeros(()).double())
        sums = torch.stack([there.sum(0).double(), columns.sum(0), columns.square().sum(0)])
        infinite = torch.full((), math.inf).double()
        lows = torch.where(there, columns, infinite).amin(0)
        highs = torch.where(there, columns, -infinite).amax(0)
        if first:
            self._sums, self._lows, self._highs = sums, lows, highs
        elif self._sums is not None and self._sums.shape == sums.shape:
            self._sums = self._sums + sums
            self._lows, self._highs = torch.minimum(self._lows, lows), torch.maximum(self._highs, highs)
        else:
            self._sums = None

    def moments(self) -> tuple[Tensor, Tensor, int] | None:
        if self._sums is None or not self._floats:
            return None
        count = self._sums[0].clamp_min(1)
        mean = self._sums[1] / count
        return mean, (self._sums[2] / count - mean.square()).clamp_min(0).sqrt(), self._count

    def facts(self) -> Part:
        shape = self._shape or ()
        is_table = len(shape) == 1 and self._floats and 1 < shape[0] <= TABLE and not self._is_target
        mean = spread = None
        if self._sums is not None and self._floats:
            count, total, square = (float(one) for one in self._sums.sum(1))
            mean = total / max(1.0, count)
            spread = math.sqrt(max(0.0, square / max(1.0, count) - mean * mean))
        still = self._still() if is_table and self._sums is not None else {}
        holes = self._holes_of() if is_table and self._sums is not None else {}
        lengths = torch.cat(self._lengths) if self._lengths else None
        has_lengths = lengths is not None and (self._padded > 0 or -1 in shape)
        return Part(
            name=self._name,
            dtype=self._dtype,
            shape=shape,
            low=_short(self._low),
            high=_short(self._high),
            mean=_short(mean),
            spread=_short(spread),
            broken=self._broken / max(1, self._total),
            kinds=len(self._ids) if not self._floats and self._ids is not None else None,
            lengths=(int(lengths.min()), int(lengths.median()), int(lengths.max()))
            if lengths is not None and has_lengths
            else None,
            padding=self._padded / self._positions if self._positions else 0.0,
            is_target=self._is_target,
            is_table=is_table,
            constant=dict(list(still.items())[:SHOWN]),
            constants=len(still),
            broken_columns=holes,
        )

    def _still(self) -> dict[int, float]:
        """Columns with one value."""
        same = (self._lows == self._highs).nonzero().flatten().tolist()
        return {column * self._step: float(self._lows[column]) for column in same}

    def _holes_of(self) -> dict[int, float]:
        assert self._sums is not None
        missing = 1 - self._sums[0] / max(1, self._count)
        worst = missing.argsort(descending=True)[:SHOWN].tolist()
        return {column * self._step: float(missing[column]) for column in worst if float(missing[column]) > 0}


def _together(blocks: list[Tensor], size: int) -> Tensor:
    """One number for each example. Small factors would not do: two ids side by side would add up to others."""
    factors = digests.factors_of_parts(len(blocks)).tolist()
    return sum((one.sum(1) * factor for one, factor in zip(blocks, factors, strict=True)), torch.zeros(size).long())


def _is_blank(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(len(tensor), -1)
    return (flat == flat[:, :1]).all(1) if flat.shape[1] > 1 else torch.zeros(len(tensor), dtype=torch.bool)


def _is_of_ids(tensor: Tensor) -> bool:
    """Whole numbers that are not an image."""
    return not tensor.is_floating_point() and tensor.dtype is not torch.uint8 and tensor.dim() <= 2


def _features(tensor: Tensor, width: int) -> Tensor:
    if _is_of_ids(tensor):
        return whole_ids(tensor, 2**16, 2 * width)
    return torch.nan_to_num(whole(tensor.float(), width), 0.0, 0.0, 0.0)


def _steps(tensor: Tensor) -> Tensor | None:
    """A number for each step of series of numbers, (examples, steps)."""
    if not tensor.is_floating_point() or tensor.dim() not in (2, 3):
        return None
    series = tensor[..., None] if tensor.dim() == 2 else tensor if tensor.shape[1] >= tensor.shape[2] else tensor.mT
    return digests.of_steps(series) if series.shape[1] >= SHORTEST_SERIES else None


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
