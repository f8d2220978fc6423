"""What the columns of data sets show: values far from all others, and how evaluation differs from training."""

from __future__ import annotations

import torch
from torch import Tensor

from unstuck.capture.data_sets.gathering import Gathered, Known
from unstuck.events import InputsCompared
from unstuck.findings.data_sets import Codes, Outlier

FAR = 100.0
"""An outlier is so many times the range of the inner 98 % of its column away from it."""
GAP = 3.0
"""A code is so many times the range of all others away from them,"""
OFTEN = 3
"""came so often,"""
MOST_OFTEN = 0.3
"""in no more than this share of the examples,"""
FEWEST_OTHERS = 10
"""and the others have so many values."""
HALF = 0.5
FEWEST, FEWEST_COMPARED = 50, 30
FIRST = 6
MOST_DIRECTIONS, MOST_ROWS = 256, 1_000
CENTRED, UNIT = 0.1, 0.1
"""A column is standardised if its mean is within this of 0, in deviations, and its deviation within this of 1."""


def strange(known: Known) -> tuple[tuple[Codes, ...], tuple[Outlier, ...]]:
    """Values far from all others of their column."""
    if known.raw is None or len(known.raw) < FEWEST:
        return (), ()
    codes: list[Codes] = []
    outliers: list[Outlier] = []
    for column, values in enumerate(known.raw.double().T):
        finite = torch.isfinite(values)
        numbers, where = values[finite], finite.nonzero().flatten()
        if len(numbers) < FEWEST or float((numbers == numbers.median()).double().mean()) > HALF:
            continue  # mostly one value: whatever else comes is far from it
        for extreme in (numbers.min(), numbers.max()):
            is_it = numbers == extreme
            others = numbers[~is_it]
            if len(others) < FEWEST or len(torch.unique(others)) < FEWEST_OTHERS:
                continue
            example = int(known.numbers[known.raw_at[where[is_it][0]]])
            low, high = float(others.min()), float(others.max())
            away = max(low - float(extreme), float(extreme) - high)
            count = int(is_it.sum())
            if OFTEN <= count <= MOST_OFTEN * len(numbers) and away > GAP * (high - low):
                codes.append(
                    Codes(column=column, value=float(extreme), count=count, low=low, high=high, example=example)
                )
                continue
            least, most = (float(one) for one in torch.quantile(numbers, torch.tensor([0.01, 0.99]).double()))
            away = max(least - float(extreme), float(extreme) - most)
            if count < OFTEN and most > least and away > FAR * (most - least):
                outliers.append(Outlier(column=column, value=float(extreme), low=least, high=most, example=example))
    return tuple(codes[:FIRST]), tuple(outliers[:FIRST])


def compared(
    trained: Gathered, evaluated: Gathered
) -> tuple[InputsCompared | None, tuple[float, float], tuple[float, ...] | None]:
    """Means and deviations of columns in evaluation next to those of training; how many are standardised in each; and
    the line on which the means lie."""
    for name in trained.inputs:
        one, other = trained.moments(name), evaluated.moments(name)
        if one is None or other is None or one[0].shape != other[0].shape or min(one[2], other[2]) < FEWEST_COMPARED:
            continue
        (mean, spread, count), (other_mean, other_spread, other_count) = one, other
        moving = spread > 1e-6 * spread.max().clamp_min(1e-30)
        if not bool(moving.any()):
            continue
        ratios = (other_spread / spread)[moving]
        centred = moving & (mean.abs() > 0.2 * spread)
        means = (other_mean / mean)[centred]
        levels = torch.quantile(ratios, torch.tensor([0.1, 0.5, 0.9]).double()).tolist()
        event = InputsCompared(
            model="",
            input=name,
            shape=tuple(mean.shape),
            trained=count,
            evaluated=other_count,
            columns=int(moving.sum()),
            scales=tuple(float(f"{level:.4g}") for level in levels),
            means=float(means.median()) if len(means) else None,
            shift=float(((other_mean - mean).abs() / spread)[moving].median()),
        )
        standard = _standardised(mean, spread, moving), _standardised(other_mean, other_spread, moving)
        return event, standard, _line(mean[moving], other_mean[moving], spread[moving], ratios)
    return None, (0.0, 0.0), None


def _standardised(mean: Tensor, spread: Tensor, moving: Tensor) -> float:
    found = (mean.abs() < CENTRED * spread) & ((spread - 1).abs() < UNIT)
    return float(found[moving].double().mean())


def _line(mean: Tensor, other: Tensor, spread: Tensor, ratios: Tensor) -> tuple[float, ...] | None:
    """Factor, offset in typical deviations, how well it fits, and how much deviations differ in what they were
    multiplied by."""
    often = spread > 0.25 * spread.median()  # others move in a few examples only
    mean, other, spread, ratios = mean[often], other[often], spread[often], ratios[often]
    x, y = mean - mean.mean(), other - other.mean()
    if len(mean) < 8 or float(x.std()) < 0.05 * float(spread.median()) or float(y.std()) == 0:
        return None
    factor = float((x * y).sum() / x.square().sum())
    fits = 1 - float((y - factor * x).square().sum() / y.square().sum())
    offset = float(other.mean() - factor * mean.mean()) / float(spread.median())
    least, most = torch.quantile(ratios, torch.tensor([0.1, 0.9]).double()).tolist()
    return factor, offset, fits, most / max(least, 1e-12)


def independent(known: Known) -> float:
    """In how many directions the examples vary: as many as there are columns, if these have nothing to do with each
    other."""
    if known.raw is None or len(known.raw) < FEWEST_COMPARED:
        return 0.0
    step = -(-known.raw.shape[1] // MOST_DIRECTIONS)
    table = torch.nan_to_num(known.raw[:MOST_ROWS, ::step].double(), 0.0, 0.0, 0.0)
    spread, mean = torch.std_mean(table, 0)
    table = ((table - mean) / spread.clamp_min(1e-12))[:, spread > 0]
    if not table.shape[1]:
        return 0.0
    squares = torch.linalg.svdvals(table).square()
    return float(squares.sum().square() / squares.square().sum())
