"""Examples of one data set that are also in another: exactly, nearly, or in part. Chance is computed for the sizes.

Equal examples say nothing where there are few possible ones: small discrete tables, images of a few grey levels, short
sequences of a few symbols. There every example has neighbours that differ from it in one or two places only. A copy
has none: what is nearest to it, apart from its copies, differs almost everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unstuck.capture.data_sets.gathering import Known
from unstuck.findings.data_sets import Twins

FIRST = 8
LOOKED_AT = 200
"""Equal examples of which the nearest others are looked for."""
COMPARED = 10_000
FEW_KINDS = 300
"""Different examples; where no more come in several times as many, there are no others."""
FEWEST_DIFFERENCES = 3
"""In so many places must an example differ from the nearest that is not equal to it; one that hardly repeats a value
counts twice."""
RARELY = 0.5
"""Such a place has this share of different values."""
ASKED, KNOWN = 2_000, 100_000
"""Examples between which distances are computed, at most."""
AMONG = 10
"""Neighbours of which the nearest is compared with the last."""
CHANCE = 1e-5
"""Of an example, to have one neighbour that much nearer than the others."""
NEAR = 0.25
"""And this much nearer than nearest neighbours usually are."""
FEWEST = 50
SHINGLE = 4
"""Steps in a row that must be equal."""
HALF = 0.5


def inside(known: Known) -> int:
    """How many equal an earlier one."""
    digest = known.digest[~known.blank]
    return len(digest) - len(torch.unique(digest))


def equal(evaluated: Known, trained: Known) -> Twins:
    """Examples of the evaluation that the training has too."""
    ours, place = _sorted(torch.cat([trained.digest, trained.other_digest]))
    numbers = torch.cat([trained.numbers, trained.other_numbers])
    at = torch.searchsorted(ours, evaluated.digest).clamp(max=max(0, len(ours) - 1))
    found = ((ours[at] == evaluated.digest) & ~evaluated.blank).nonzero().flatten()
    first = [(int(evaluated.numbers[one]), int(numbers[place[at[one]]])) for one in found[:FIRST].tolist()]
    chance = len(evaluated.digest) * len(trained.digest) * same_by_columns(trained)
    natural = bool(len(found)) and (
        chance > 0.05 * len(found) or is_natural(evaluated, evaluated.digest[found], trained)
    )
    return Twins(looked_at=len(evaluated.digest), count=len(found), chance=chance, natural=natural, first=tuple(first))


def same_by_columns(known: Known) -> float:
    """How likely two examples are equal, if their columns had nothing to do with each other: the least it can be."""
    if known.blocks is None:
        return 0.0
    sample = known.blocks[:COMPARED]
    chance = 1.0
    for column in sample.T:
        counts = torch.unique(column, return_counts=True)[1].double()
        size = len(column)
        chance *= float((counts * (counts - 1)).sum() / max(1, size * (size - 1)))
        if chance < 1e-18:
            return 0.0
    return chance


def is_natural(asked: Known, digest: Tensor, among: Known) -> bool:
    """Are there so few possible examples that equal ones are chance? By the nearest that are not equal."""
    if asked.blocks is None or among.blocks is None or asked.blocks.shape[1] != among.blocks.shape[1]:
        return False
    kinds = len(torch.unique(among.digest))
    if kinds < FEW_KINDS and kinds < HALF * len(among.digest):
        return True
    own = asked.blocks[torch.isin(asked.digest[asked.parted], digest)][:LOOKED_AT]
    others = among.blocks[:COMPARED]
    if not len(own) or not len(others):
        return False
    rarely = torch.tensor([len(torch.unique(column)) >= RARELY * len(others) for column in others.T])
    weight = 1 + rarely.to(torch.int16)
    most = int(weight.sum())
    nearest = []
    for row in own:
        apart = ((others != row) * weight).sum(1)
        apart = apart[apart > 0]
        nearest.append(int(apart.min()) if len(apart) else 0)
    typical = sorted(nearest)[len(nearest) // 2]
    return typical < FEWEST_DIFFERENCES or (most > 2 * FEWEST_DIFFERENCES and typical == 0)


def near(evaluated: Known, trained: Known) -> Twins | None:
    """Examples of the evaluation of which the training has an almost equal one: one neighbour much nearer than the
    next ones, by more than chance allows in data of so many dimensions. None if that cannot be said."""
    if evaluated.features is None or trained.features is None or evaluated.has_ids or trained.has_ids:
        return None
    if evaluated.features.shape[1] != trained.features.shape[1] or len(trained.features) < FEWEST:
        return None
    own = torch.isin(evaluated.digest[evaluated.featured], trained.digest)
    rows = (~own & ~evaluated.blank[evaluated.featured]).nonzero().flatten()[:ASKED]
    if len(rows) < FEWEST // 2:
        return None
    known = trained.features[:KNOWN]
    mean, spread = known.mean(0), known.std(0)
    varies = spread > 1e-6 * (mean.abs() + spread.max())
    if not bool(varies.any()):
        return None
    among = ((known - mean) / spread.clamp_min(1e-12))[:, varies]
    asked = ((evaluated.features[rows] - mean) / spread.clamp_min(1e-12))[:, varies]
    distances, nearest = _nearest(asked, among)
    first, last = distances[:, 0].double(), distances[:, -1].double()
    usable = last > 0
    ratio = (first / last.clamp_min(1e-30))[usable]
    middle = float(ratio.median()) if len(ratio) else 1.0
    if not 0 < middle < 1:
        return None
    # The share of the volume around an example that is nearer than its nearest neighbour, in so many dimensions.
    dimensions = torch.log(torch.tensor(1 - 0.5 ** (1 / (AMONG - 1)))) / torch.log(torch.tensor(middle))
    chance = (AMONG - 1) * ratio ** float(dimensions)
    is_twin = torch.zeros(len(rows), dtype=torch.bool)
    is_twin[usable] = (chance < CHANCE) & (first[usable] < NEAR * first[usable].median())
    found = is_twin.nonzero().flatten()
    pairs = [
        (
            int(evaluated.numbers[evaluated.featured[rows[one]]]),
            int(trained.numbers[trained.featured[nearest[one]]]),
        )
        for one in found[:FIRST].tolist()
    ]
    return Twins(looked_at=len(rows), count=len(found), chance=CHANCE * len(rows), first=tuple(pairs))


def _nearest(asked: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """The distances of the nearest few, and which is nearest."""
    squares = among.square().sum(1)
    distances, places = [], []
    for part in torch.split(asked, max(1, 2**24 // len(among))):
        found = (part.square().sum(1)[:, None] + squares - 2 * part @ among.T).topk(AMONG, 1, largest=False)
        exact = (among[found.indices] - part[:, None]).square().sum(2).sqrt()  # differences of squares are not precise
        order = exact.argsort(1)
        distances.append(exact.gather(1, order))
        places.append(found.indices.gather(1, order)[:, 0])
    return torch.cat(distances), torch.cat(places)


def overlapping(evaluated: Known, trained: Known) -> Twins | None:
    """Windows of the evaluation of which at least half is in windows of the training, at any place."""
    if evaluated.steps is None or trained.steps is None or trained.steps.shape[1] != evaluated.steps.shape[1]:
        return None
    steps = trained.steps
    # Of a series of few different values, parts are equal by chance.
    if len(torch.unique(steps)) < RARELY * len(steps):
        return None
    ours, _ = _sorted(torch.unique(_shingles(steps)))
    theirs = _shingles(evaluated.steps)
    at = torch.searchsorted(ours, theirs).clamp(max=len(ours) - 1)
    still = (evaluated.steps[:, 1:] == evaluated.steps[:, :-1]).all(1)
    share = (ours[at] == theirs).double().mean(1)
    whole = torch.isin(evaluated.digest[evaluated.parted[: len(theirs)]], trained.digest)
    found = ((share >= HALF) & ~still & ~whole).nonzero().flatten()
    pairs = tuple((int(evaluated.numbers[evaluated.parted[one]]), -1) for one in found[:FIRST].tolist())
    return Twins(looked_at=len(theirs), count=len(found), first=pairs)


def _shingles(steps: Tensor) -> Tensor:
    parts = steps.unfold(1, SHINGLE, 1)
    return (parts * torch.tensor([1, 1_000_003, 998_244_353, 2_147_483_647])).sum(2)


def _sorted(digest: Tensor) -> tuple[Tensor, Tensor]:
    found = digest.sort()
    return found.values, found.indices
