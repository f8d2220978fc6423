"""What the targets of a data set show: conflicts, labels that look wrong, order, columns that give them away."""

from __future__ import annotations

import torch
from torch import Tensor

from unstuck.capture.data_sets.gathering import Known
from unstuck.capture.data_sets.twins import is_natural
from unstuck.capture.trial.readers import read, split
from unstuck.findings.data_sets import Conflicts, Order, Suspect, Suspects

FIRST = 8
FEWEST, MOST = 100, 3_000
"""Examples on which a simple model is fitted."""
MOST_KINDS = 100
EACH = 5
"""Examples that a class must have to be predicted."""
NEIGHBOURS = 10
SURE = 2 / 3
"""Of the examples, those of which the model is most sure."""
ROUNDING = 1e-5
"""Of the spread of a target."""
FEWEST_COLUMNS = 3
EXACT = 1e-5
MOST_TELLING = 8


def conflicts(known: Known) -> Conflicts | None:
    """Equal inputs with different targets."""
    target = known.labels if known.labels is not None else known.values
    if target is None:
        return None
    slack = ROUNDING * float(target.double().std()) if known.labels is None and len(target) > 1 else 0.0
    there = (~known.blank).nonzero().flatten()
    kinds, which, counts = torch.unique(known.digest[there], return_inverse=True, return_counts=True)
    ours = target[there].double()
    low = torch.full((len(kinds),), float("inf")).double().scatter_reduce(0, which, ours, "amin")
    high = torch.full((len(kinds),), -float("inf")).double().scatter_reduce(0, which, ours, "amax")
    differs = (high - low > slack) & (counts > 1)
    found = there[differs[which]]
    if not len(found):
        return Conflicts(examples=0, natural=False)
    pairs = []
    for kind in differs.nonzero().flatten()[:FIRST].tolist():
        members = there[which == kind]
        other = members[(target[members] != target[members[0]]).nonzero().flatten()[:1]]
        pairs.append((int(known.numbers[members[0]]), int(known.numbers[other[0]])))
    natural = is_natural(known, torch.unique(known.digest[found]), known)
    return Conflicts(examples=len(found), natural=natural, first=tuple(pairs))


def suspects(known: Known) -> Suspects | None:
    """Labels that models in closed form, fitted on other examples, contradict where they are sure. None if labels
    cannot be predicted."""
    if known.labels is None or known.features is None:
        return None
    rows = torch.arange(min(len(known.features), MOST))
    labels = known.labels[known.featured[rows]]
    kinds, counts = torch.unique(labels, return_counts=True)
    often = kinds[counts >= EACH]
    if not 2 <= len(often) <= MOST_KINDS:
        return None
    rows = rows[torch.isin(labels, often)]
    at = known.featured[rows]
    # Copies of an example would answer for it.
    _, which = torch.unique(known.digest[at], return_inverse=True)
    first = torch.full((int(which.max()) + 1,), len(at)).scatter_reduce(0, which, torch.arange(len(at)), "amin")
    first = first.sort().values
    rows, at = rows[first], at[first]
    if len(rows) < FEWEST:
        return None
    labels = known.labels[at]
    which = torch.searchsorted(often, labels)
    features = known.features[rows]
    scores = max(
        (_by_fit(features, which, len(often)), _by_neighbours(features, which, len(often))),
        key=lambda one: float((one.argmax(1) == which).double().mean()),
    )
    best = scores.topk(2, 1)
    sureness = best.values[:, 0] - best.values[:, 1]
    guessed = best.indices[:, 0]
    order = sureness.argsort(descending=True)
    sure = order[: int(SURE * len(order))]
    is_wrong = guessed[sure] != which[sure]
    wrong = sure[is_wrong]
    place = 1 - is_wrong.nonzero().flatten().double() / max(1, len(sure))
    return Suspects(
        looked_at=len(rows),
        right=float((guessed == which).double().mean()),
        guess=float(torch.bincount(which).max() / len(which)),
        sure=len(sure),
        wrong=len(wrong),
        rank=float(place.mean()) if len(wrong) else 0.0,
        first=tuple(
            Suspect(int(known.numbers[at[one]]), int(labels[one]), int(often[guessed[one]]))
            for one in wrong[:FIRST].tolist()
        ),
    )


def _by_fit(features: Tensor, which: Tensor, kinds: int) -> Tensor:
    """What ridge regression says of each example, fitted without its fold."""
    wanted = torch.nn.functional.one_hot(which, kinds).float()
    parts = split(torch.arange(len(which)), 1)._replace(exchanges=[])
    return read(features, wanted, parts).predictions + wanted.mean(0)


def _by_neighbours(features: Tensor, which: Tensor, kinds: int) -> Tensor:
    """How many of the nearest others have each label; nearer ones count a little more."""
    spread, mean = torch.std_mean(features, 0)
    table = ((features - mean) / spread.clamp_min(1e-12)).clamp(-5, 5)[:, spread > 0]
    near = torch.cdist(table, table).fill_diagonal_(float("inf")).topk(NEIGHBOURS, 1, largest=False)
    weight = 1 / (1 + near.values / near.values.median().clamp_min(1e-12))
    votes = torch.zeros(len(which), kinds).scatter_add_(1, which[near.indices], weight)
    return votes / weight.sum(1, keepdim=True)


def order(labels: Tensor) -> Order:
    """Of labels in the order in which they are given."""
    shares = torch.unique(labels, return_counts=True)[1].double() / len(labels)
    changes = int((labels[1:] != labels[:-1]).sum())
    return Order(changes=changes, expected=float((1 - shares.square().sum()) * (len(labels) - 1)))


def telling(known: Known) -> tuple[tuple[int, ...], int]:
    """Columns from which the target follows exactly, by a straight line or one value for each class; and how many there
    are in all."""
    target = known.labels if known.labels is not None else known.values
    if target is None or known.raw is None or not known.raw.shape[1] >= FEWEST_COLUMNS:
        return (), 0
    columns, wanted = known.raw.double(), target[known.raw_at].double()
    if not bool(torch.isfinite(columns).all()) or float(wanted.std()) == 0:
        return (), columns.shape[1]
    x, y = columns - columns.mean(0), wanted - wanted.mean()
    squares = x.square().sum(0)
    slope = (x * y[:, None]).sum(0) / squares.clamp_min(1e-300)
    rest = (y[:, None] - x * slope).abs().amax(0)
    found = (rest <= EXACT * y.std()) & (squares > 0)
    if known.labels is not None:
        found |= _by_class(columns, wanted)
    return tuple(found.nonzero().flatten()[:MOST_TELLING].tolist()), columns.shape[1]


def _by_class(columns: Tensor, labels: Tensor) -> Tensor:
    """Columns with one value for each class, another for each."""
    kinds, which = torch.unique(labels, return_inverse=True)
    if len(kinds) * EACH > len(labels):  # of a class with one example, any column has one value
        return torch.zeros(columns.shape[1], dtype=torch.bool)
    size = (len(kinds), columns.shape[1])
    at = which[:, None].expand(-1, columns.shape[1])
    low = torch.full(size, float("inf")).double().scatter_reduce(0, at, columns, "amin")
    high = torch.full(size, -float("inf")).double().scatter_reduce(0, at, columns, "amax")
    apart = low.sort(0).values.diff(dim=0).amin(0) > 0
    return (low == high).all(0) & apart
