"""Pairs of runs with the same seed and steps, one of them with a change: the decision rule of every proof.

Fixed before any run: each pair gives the loss with the change as a share of the loss without it, both at their ends.
`confirmed`: with three pairs or more, the 95 % interval of the mean (of logarithms, Student's t) lies below -5 %, or
every pair is lower by two fifths; with fewer, every pair is lower by a fifth. `worse`: the same, above. `no effect`:
every pair lies within 5 %, or the interval within 10 %. Anything else is `undecided`. A run that crashes or ends
non-finite counts as infinitely worse than one that does not. A pair of which a run was cut off by its deadline before
half of the steps, or whose losses cannot be compared, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from unstuck.findings.curve import Curve
from unstuck.findings.results import Pair, ProofVerdict, Status
from unstuck.interventions import Intervention
from unstuck.interventions.seeds import Seed
from unstuck.trials.context import Context
from unstuck.trials.runner import Outcome, Variant

SEEDS, MOST_SEEDS = 3, 5
SMALLEST_EFFECT = 0.05
NOTHING = 0.10
LARGE_EFFECT = 0.20
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a two-sided 95 % interval, by the number of pairs."""
RECORDED = 1e-4
"""Relative differences below this are rounding."""
LIMIT = 3.0
"""Logarithms of shares beyond which a run is as good as won or lost."""
LEVEL = 0.25
"""Of a loss below 0, the share of its own size that a difference is measured in at least."""
ENOUGH = 0.5
"""Of the steps, the share that a run cut off by its deadline must have taken."""
BEFORE_A_CRASH = 10
"""Steps that two runs which crash must have taken before it, to be compared."""


def run_pairs(
    context: Context,
    name: str,
    changes: Sequence[Intervention],
    seeds: Sequence[int],
    steps: int,
    shared: Sequence[Intervention] = (),
    curve: Callable[[Outcome], Curve] = lambda outcome: outcome.curve,
) -> list[Pair]:
    """The program with these changes and without, for each seed; `shared` are made in all of them.

    `curve`: which losses of a run are compared.
    """
    variants = []
    for seed in seeds:
        variants.append(Variant(f"without-{name}-seed{seed}", (Seed(seed), *shared)))
        variants.append(Variant(f"with-{name}-seed{seed}", (Seed(seed), *shared, *changes)))
    outcomes = context.run(variants, steps)
    return [
        Pair(seed, curve(without), curve(remedied), _status(without), _status(remedied))
        for seed, without, remedied in zip(seeds, outcomes[::2], outcomes[1::2], strict=True)
    ]


def _status(outcome: Outcome) -> Status:
    return Status.KILLED if outcome.ran_out_of_time else outcome.status


def decide(gains: Sequence[float]) -> tuple[ProofVerdict, tuple[float, float] | None]:
    """The verdict on logarithms of shares, below 0 for a lower loss; and their interval."""
    mean = math.fsum(gains) / len(gains)
    interval = None
    if len(gains) >= 2:
        spread = math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1))
        half = STUDENT.get(len(gains), 2.0) * spread / math.sqrt(len(gains))
        interval = (mean - half, mean + half)
    less, more = math.log1p(-SMALLEST_EFFECT), math.log1p(SMALLEST_EFFECT)
    if all(less < gain < more for gain in gains):
        return ProofVerdict.NO_EFFECT, interval
    if len(gains) >= 3 and interval is not None:
        # All runs lost against all runs won needs no interval, whose width would be that of the limit.
        if interval[1] < less or all(gain <= math.log1p(-2 * LARGE_EFFECT) for gain in gains):
            return ProofVerdict.CONFIRMED, interval
        if interval[0] > more or all(gain >= math.log1p(2 * LARGE_EFFECT) for gain in gains):
            return ProofVerdict.WORSE, interval
        if -math.log1p(NOTHING) < interval[0] and interval[1] < math.log1p(NOTHING):
            return ProofVerdict.NO_EFFECT, interval
        return ProofVerdict.UNDECIDED, interval
    if all(gain < math.log1p(-LARGE_EFFECT) for gain in gains):
        return ProofVerdict.CONFIRMED, interval
    if all(gain > math.log1p(LARGE_EFFECT) for gain in gains):
        return ProofVerdict.WORSE, interval
    return ProofVerdict.UNDECIDED, interval


def gain_of(pair: Pair, steps: int, changes_loss: bool = False) -> float | None:
    """Logarithm of the loss with the remedy as a share of the loss without, at the ends of equally long curves.

    None: the pair does not count.
    """
    lost, lost_too = is_lost(pair.without, pair.without_status), is_lost(pair.remedied, pair.remedied_status)
    runs = ((pair.without, pair.without_status, lost), (pair.remedied, pair.remedied_status, lost_too))
    if any(not is_lost and is_cut_short(curve, status, steps) for curve, status, is_lost in runs):
        return None
    if (lost or lost_too) and not both_crash_late(pair):
        return 0.0 if lost and lost_too else LIMIT if lost_too else -LIMIT
    length = min(len(pair.without.losses), len(pair.remedied.losses))
    share = _log_share(pair.without.until(length), pair.remedied.until(length), changes_loss)
    return None if share is None else max(-LIMIT, min(LIMIT, share))


def both_crash_late(pair: Pair) -> bool:
    """Do both runs crash, for a reason of their own, after enough steps to be compared up to there?"""
    crash = pair.without_status is pair.remedied_status is Status.CRASHED
    runs = (pair.without, pair.remedied)
    return crash and all(not run.is_broken and len(run.losses) >= BEFORE_A_CRASH for run in runs)


def is_same(one: Curve, other: Curve) -> bool:
    """Are the losses the same, to as many digits as every one is recorded with?"""
    pairs = zip(one.losses, other.losses, strict=False)
    return all(a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=RECORDED)) for a, b in pairs)


def is_lost(curve: Curve, status: Status) -> bool:
    return curve.is_broken or status is Status.CRASHED


def is_cut_short(curve: Curve, status: Status, steps: int) -> bool:
    return not curve.losses or (status is Status.KILLED and len(curve.losses) < ENOUGH * steps)


def _log_share(before: Curve, after: Curve, changes_loss: bool) -> float | None:
    one, other = before.end, after.end
    start, other_start = before.start, after.start
    if one is None or other is None or start is None or other_start is None:
        return None  # a value among those that both have was not finite
    if changes_loss and min(one, other, start, other_start) <= 0:
        return None
    if changes_loss:
        return math.log(other / other_start) - math.log(one / start)
    if one > 0 and other > 0:
        return math.log(other) - math.log(one)
    # Losses below 0 have no share: their difference, in units of how far they moved or of their own size.
    moved = max(abs(start - one), abs(other_start - other), LEVEL * max(abs(one), abs(other)))
    return (other - one) / moved if moved else 0.0
