"""Tries the remedies of findings: the same script, the same seeds, the same steps, with only that change.

The decision rule, fixed before any run: pairs of runs share a seed, and each pair gives the loss with the remedy as a
share of the loss without it, both at their ends. `confirmed`: with three pairs or more, the 95 % interval of the mean
(of logarithms, Student's t) lies below -5 %, or every pair is lower by two fifths; with fewer, every pair is lower by
a fifth. `worse`: the same, above. `no effect`: every pair lies within 5 %, or the interval within 10 %. Anything else
is `undecided`. A run that crashes or ends non-finite counts as infinitely worse than one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from unstuck.experiments.context import Context
from unstuck.experiments.curve import Curve
from unstuck.experiments.remedies import Remedied, remedies_of
from unstuck.experiments.result import Pair, Proof
from unstuck.experiments.runner import Outcome, Variant
from unstuck.findings import Diagnosis
from unstuck.interventions import EditSource, Seed

SEEDS = 3
SMALLEST_EFFECT = 0.05
NOTHING = 0.10
LARGE_EFFECT = 0.20
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a two-sided 95 % interval, by the number of pairs."""
LIMIT = 3.0
"""Logarithms of shares beyond which a run is as good as won or lost."""
ALIVE = ("stopped", "finished", "exited")


def prove(context: Context, diagnosis: Diagnosis, steps: int) -> tuple[Proof, Remedied] | None:
    """Try the ways to mend a finding until one works or none is left; None if there is no way to try it."""
    best: tuple[Proof, Remedied] | None = None
    for remedied in remedies_of(diagnosis):
        proof = try_remedy(context, remedied, steps)
        if proof.verdict == "confirmed":
            return proof, remedied
        best = best or (proof, remedied)
    return best


def try_remedy(context: Context, remedied: Remedied, steps: int) -> Proof:
    """First one pair of runs; more of them if the first shows anything at all."""
    code = remedied.diagnosis.lead.code
    context.tell(f"trying the remedy of {code}: {remedied.words}")
    pairs = _pairs(context, remedied, [0], steps)
    shows = abs(_gain(pairs[0], remedied.changes_loss)) > math.log1p(SMALLEST_EFFECT) / 2
    if shows and context.plan(2 * (SEEDS - 1), wanted=steps) >= 0.9 * steps:
        pairs += _pairs(context, remedied, range(1, SEEDS), steps)
    return judged(remedied, pairs, steps)


def _pairs(context: Context, remedied: Remedied, seeds: Sequence[int], steps: int) -> list[Pair]:
    code = remedied.diagnosis.lead.code
    variants = []
    for seed in seeds:
        variants.append(Variant(f"without-{code}-seed{seed}", (Seed(seed),)))
        variants.append(Variant(f"with-{code}-seed{seed}", (Seed(seed), *remedied.changes)))
    outcomes = context.run(variants, steps)
    return [
        _paired(seed, without, mended)
        for seed, without, mended in zip(seeds, outcomes[::2], outcomes[1::2], strict=True)
    ]


def _paired(seed: int, without: Outcome, mended: Outcome) -> Pair:
    return Pair(seed, without.curve, mended.curve, without.status, mended.status)


def judged(remedied: Remedied, pairs: Sequence[Pair], steps: int) -> Proof:
    """Apply the decision rule."""
    gains = [_gain(pair, remedied.changes_loss) for pair in pairs]
    verdict, interval = decide(gains)
    mean = math.fsum(gains) / len(gains)
    edited = any(isinstance(change, EditSource) for change in remedied.changes)
    return Proof(
        code=remedied.diagnosis.lead.code,
        verdict=verdict,
        sentence=_sentence(verdict, pairs, interval, remedied),
        remedy="edit" if edited else remedied.words,
        steps=steps,
        pairs=tuple(pairs),
        difference=math.expm1(mean),
        interval=(math.expm1(interval[0]), math.expm1(interval[1])) if interval else None,
    )


def decide(gains: Sequence[float]) -> tuple[str, tuple[float, float] | None]:
    """The verdict on logarithms of shares, below 0 for a lower loss; and their interval."""
    mean = math.fsum(gains) / len(gains)
    interval = None
    if len(gains) >= 2:
        spread = math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1))
        half = STUDENT.get(len(gains), 2.0) * spread / math.sqrt(len(gains))
        interval = (mean - half, mean + half)
    less, more = math.log1p(-SMALLEST_EFFECT), math.log1p(SMALLEST_EFFECT)
    if all(less < gain < more for gain in gains):
        return "no effect", interval
    if len(gains) >= 3 and interval is not None:
        # All runs lost against all runs won needs no interval, whose width would be that of the limit.
        if interval[1] < less or all(gain <= math.log1p(-2 * LARGE_EFFECT) for gain in gains):
            return "confirmed", interval
        if interval[0] > more or all(gain >= math.log1p(2 * LARGE_EFFECT) for gain in gains):
            return "worse", interval
        if -math.log1p(NOTHING) < interval[0] and interval[1] < math.log1p(NOTHING):
            return "no effect", interval
        return "undecided", interval
    if all(gain < math.log1p(-LARGE_EFFECT) for gain in gains):
        return "confirmed", interval
    if all(gain > math.log1p(LARGE_EFFECT) for gain in gains):
        return "worse", interval
    return "undecided", interval


def _gain(pair: Pair, changes_loss: bool) -> float:
    """Logarithm of the loss with the remedy as a share of the loss without, at the ends of equally long curves."""
    lost, won = _is_lost(pair.without, pair.without_status), _is_lost(pair.remedied, pair.remedied_status)
    if lost or won:
        return 0.0 if lost and won else LIMIT if won else -LIMIT
    length = min(len(pair.without.losses), len(pair.remedied.losses))
    before, after = pair.without.until(length), pair.remedied.until(length)
    return max(-LIMIT, min(LIMIT, _log_share(before, after, changes_loss)))


def _is_lost(curve: Curve, status: str) -> bool:
    return curve.end is None or status == "crashed"


def _log_share(before: Curve, after: Curve, changes_loss: bool) -> float:
    one, other = before.end or 0.0, after.end or 0.0
    start, other_start = before.start or 0.0, after.start or 0.0
    # Losses below 0 have no share: their difference, in units of how far they moved at all.
    moved = max(abs(start - one), abs(other_start - other), 1e-12)
    if changes_loss:
        one, other = one / (abs(start) or 1.0), other / (abs(other_start) or 1.0)
    return math.log(other) - math.log(one) if one > 0 and other > 0 else (other - one) / moved


def _sentence(verdict: str, pairs: Sequence[Pair], interval: tuple[float, float] | None, remedied: Remedied) -> str:
    seeds = "one seed" if len(pairs) == 1 else f"{len(pairs)} seeds"
    length = min(min(len(pair.without.losses), len(pair.remedied.losses)) for pair in pairs)
    if all(_is_lost(pair.without, pair.without_status) for pair in pairs) and verdict == "confirmed":
        what = "crashes" if pairs[0].without_status == "crashed" else "ends non-finite"
        went = f"runs for {len(pairs[0].remedied.losses)} steps, to a loss of {_mean_end(pairs, after=True):.4g}"
        return f"without it the run {what}; with it, it {went} ({seeds})."
    ends = f"{_mean_end(pairs, after=True):.4g} instead of {_mean_end(pairs, after=False):.4g}"
    held = ""
    if interval is not None:
        low, high = (100 * math.expm1(bound) for bound in interval)
        held = f", {low:+.0f} % to {high:+.0f} % with 95 % confidence" if -99 < high < 1000 else ""
    own = " (each counted in its own way)" if remedied.changes_loss else ""
    return f"after {length} steps the loss is {ends}{own}, over {seeds}{held}."


def _mean_end(pairs: Sequence[Pair], *, after: bool) -> float:
    length = min(min(len(pair.without.losses), len(pair.remedied.losses)) for pair in pairs)
    curves = [(pair.remedied if after else pair.without) for pair in pairs]
    ends = [curve.until(length or len(curve.losses)).end for curve in curves]
    known = [end for end in ends if end is not None]
    return math.fsum(known) / len(known) if known else math.nan
