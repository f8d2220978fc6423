"""Tries the remedies of findings: the same script, the same seeds, the same steps, with only that change.

The decision rule, fixed before any run: pairs of runs share a seed, and each pair gives the loss with the remedy as a
share of the loss without it, both at their ends. `confirmed`: with three pairs or more, the 95 % interval of the mean
(of logarithms, Student's t) lies below -5 %, or every pair is lower by two fifths; with fewer, every pair is lower by
a fifth. `worse`: the same, above. `no effect`: every pair lies within 5 %, or the interval within 10 %. Anything else
is `undecided`. A run that crashes or ends non-finite counts as infinitely worse than one that does not. A pair of
which a run was cut off by its deadline before half of the steps, or whose losses cannot be compared, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from unstuck.findings import Diagnosis, Severity
from unstuck.findings.curve import Curve
from unstuck.findings.results import EDIT, Pair, Proof, ProofVerdict, Status, matters
from unstuck.interventions import Intervention, in_words
from unstuck.interventions.edit_source import EditSource
from unstuck.interventions.give_loss import GiveLoss
from unstuck.interventions.seeds import Seed
from unstuck.rule import find_rule
from unstuck.trials.context import Context
from unstuck.trials.runner import Outcome, Variant
from unstuck.trials.trial import StopReason

SEEDS, MOST_SEEDS = 3, 5
SMALLEST_EFFECT = 0.05
NOTHING = 0.10
LARGE_EFFECT = 0.20
RECORDED = 1e-4
"""Relative differences below this are rounding."""
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for a two-sided 95 % interval, by the number of pairs."""
LIMIT = 3.0
"""Logarithms of shares beyond which a run is as good as won or lost."""
LEVEL = 0.25
"""Of a loss below 0, the share of its own size that a difference is measured in at least."""
ENOUGH = 0.5
"""Of the steps, the share that a run cut off by its deadline must have taken."""
BEFORE_A_CRASH = 10
"""Steps that two runs which crash must have taken before it, to be compared."""


class Remedied(msgspec.Struct, frozen=True):
    """A diagnosis with one way to remove its cause in a trial."""

    diagnosis: Diagnosis
    changes: tuple[Intervention, ...]
    words: str
    """What is changed."""
    changes_loss: bool = False


def remedies_of(diagnosis: Diagnosis) -> Iterator[Remedied]:
    """The edits of its fix first, since they are what the user will do; then the interventions of its rule."""
    lead = diagnosis.lead
    rule = find_rule(lead.code)
    changes_loss = rule is not None and rule.changes_loss
    edits = next((finding.fix.edits for finding in (lead, *diagnosis.findings) if finding.fix.edits), ())
    if edits:
        edit = EditSource(edits)
        yield Remedied(diagnosis, (edit,), edit.words, changes_loss)
    if rule is None or rule.remedy is None:
        return
    ways = dict.fromkeys(tuple(way) for finding in (lead, *diagnosis.findings) for way in rule.remedy(finding))
    for changes in ways:
        # Other interventions leave the value of the loss alone, whatever an edit would do to it.
        gives = any(isinstance(change, GiveLoss) for change in changes)
        yield Remedied(diagnosis, changes, in_words(changes), changes_loss and gives)


def worth_trying(diagnosis: Diagnosis) -> bool:
    """Is there a remedy to try, and does it matter?"""
    return diagnosis.severity is not Severity.ADVICE and next(remedies_of(diagnosis), None) is not None


def prove(context: Context, diagnosis: Diagnosis, steps: int, seeds: int = SEEDS) -> tuple[Proof, Remedied] | None:
    """Try the remedies of a diagnosis until one works or none is left; None if there is none to try."""
    best: tuple[Proof, Remedied] | None = None
    for remedied in remedies_of(diagnosis):
        proof = try_remedy(context, remedied, steps, seeds)
        if proof.verdict is ProofVerdict.CONFIRMED:
            return proof, remedied
        # Where all runs are the same, number by number, the change did nothing, so nothing was tried.
        if not all(_same(pair.without, pair.remedied) for pair in proof.pairs):
            best = best or (proof, remedied)
    return best


def _same(one: Curve, other: Curve) -> bool:
    """To as many digits as every loss is recorded with."""
    pairs = zip(one.losses, other.losses, strict=False)
    return all(a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=RECORDED)) for a, b in pairs)


def try_remedy(context: Context, remedied: Remedied, steps: int, seeds: int = SEEDS) -> Proof:
    """First one pair of runs; more of them if the first shows anything at all."""
    code = remedied.diagnosis.lead.code
    context.tell(f"trying the remedy of {code}: {remedied.words}")
    pairs = _pairs(context, remedied, [0], steps)
    first = gain_of(pairs[0], steps, remedied.changes_loss)
    shows = first is not None and abs(first) > math.log1p(SMALLEST_EFFECT) / 2
    if shows and context.plan(2 * (seeds - 1), wanted=steps) >= 0.9 * steps:
        pairs += _pairs(context, remedied, range(1, seeds), steps)
    return judged(remedied, pairs, steps)


def _pairs(context: Context, way: Remedied, seeds: Sequence[int], steps: int) -> list[Pair]:
    code = way.diagnosis.lead.code
    variants = []
    for seed in seeds:
        variants.append(Variant(f"without-{code}-seed{seed}", (Seed(seed),)))
        variants.append(Variant(f"with-{code}-seed{seed}", (Seed(seed), *way.changes)))
    outcomes = context.run(variants, steps)
    return [
        Pair(seed, without.curve, remedied.curve, _status(without), _status(remedied))
        for seed, without, remedied in zip(seeds, outcomes[::2], outcomes[1::2], strict=True)
    ]


def _status(outcome: Outcome) -> Status:
    return Status.KILLED if outcome.reason == StopReason.TIME_OVER else outcome.status


def judged(remedied: Remedied, pairs: Sequence[Pair], steps: int) -> Proof:
    """Apply the decision rule."""
    compared = [(pair, gain) for pair in pairs if (gain := gain_of(pair, steps, remedied.changes_loss)) is not None]
    gains = [gain for _, gain in compared]
    verdict, interval = decide(gains) if gains else (ProofVerdict.UNDECIDED, None)
    # Losses below 0 and lost runs have no share.
    are_shares = bool(gains) and all(_has_share(pair) and abs(gain) < LIMIT for pair, gain in compared)
    edited = any(isinstance(change, EditSource) for change in remedied.changes)
    lead = remedied.diagnosis.lead
    proof = Proof(
        code=lead.code,
        about=matters(remedied.diagnosis),
        verdict=verdict,
        sentence="",
        remedy=EDIT if edited else remedied.words,
        steps=steps,
        pairs=tuple(pairs),
        difference=math.expm1(math.fsum(gains) / len(gains)) if are_shares else None,
        interval=(math.expm1(interval[0]), math.expm1(interval[1])) if interval and are_shares else None,
    )
    sentence = _sentence(proof, [pair for pair, _ in compared], remedied.changes_loss)
    return msgspec.structs.replace(proof, sentence=sentence)


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
    lost, lost_too = _is_lost(pair.without, pair.without_status), _is_lost(pair.remedied, pair.remedied_status)
    runs = ((pair.without, pair.without_status, lost), (pair.remedied, pair.remedied_status, lost_too))
    if any(not is_lost and _is_cut_short(curve, status, steps) for curve, status, is_lost in runs):
        return None
    if (lost or lost_too) and not _both_crash_late(pair):
        return 0.0 if lost and lost_too else LIMIT if lost_too else -LIMIT
    length = min(len(pair.without.losses), len(pair.remedied.losses))
    share = _log_share(pair.without.until(length), pair.remedied.until(length), changes_loss)
    return None if share is None else max(-LIMIT, min(LIMIT, share))


def _both_crash_late(pair: Pair) -> bool:
    """Do both runs crash, for a reason of their own, after enough steps to be compared up to there?"""
    crash = pair.without_status is pair.remedied_status is Status.CRASHED
    runs = (pair.without, pair.remedied)
    return crash and all(not run.is_broken and len(run.losses) >= BEFORE_A_CRASH for run in runs)


def _is_lost(curve: Curve, status: Status) -> bool:
    return curve.is_broken or status is Status.CRASHED


def _is_cut_short(curve: Curve, status: Status, steps: int) -> bool:
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


def _has_share(pair: Pair) -> bool:
    return all(curve.end is not None and curve.end > 0 for curve in (pair.without, pair.remedied))


def _sentence(proof: Proof, compared: Sequence[Pair], changes_loss: bool) -> str:
    if not compared:
        return _why_uncompared(proof.pairs, proof.steps)
    seeds = "one seed" if len(compared) == 1 else f"{len(compared)} seeds"
    without = _loss_of_all([(pair.without, pair.without_status) for pair in compared])
    remedied = _loss_of_all([(pair.remedied, pair.remedied_status) for pair in compared])
    crash_late = all(map(_both_crash_late, compared))
    if without and remedied and not crash_late:
        return f"with and without it the run {remedied} ({seeds})."
    if without and not crash_late:
        steps = min(len(pair.remedied.losses) for pair in compared)
        reached = f"runs for {steps} steps, to a loss of {_mean_end(compared, after=True):.4g}"
        return f"without it the run {without}; with it, it {reached} ({seeds})."
    if remedied and not crash_late:
        return f"with it the run {remedied} ({seeds})."
    ends = f"{_mean_end(compared, after=True):.4g} instead of {_mean_end(compared, after=False):.4g}"
    confidence = ""
    if proof.interval is not None:
        low, high = (100 * bound for bound in proof.interval)
        confidence = f", {low:+.0f} % to {high:+.0f} % with 95 % confidence" if high < 1000 else ""
    own = " (each counted in its own way)" if changes_loss else ""
    crash = "; the run crashes after that either way" if crash_late else ""
    return f"after {_length(compared)} steps the loss is {ends}{own}, over {seeds}{confidence}{crash}."


def _why_uncompared(pairs: Sequence[Pair], steps: int) -> str:
    if any(_is_cut_short(pair.without, pair.without_status, steps) for pair in pairs):
        return "the run as it is was cut off before it had shown enough."
    if any(_is_cut_short(pair.remedied, pair.remedied_status, steps) for pair in pairs):
        return "the run with it was cut off before it had shown enough."
    return "it is another loss with it, and the two cannot be compared."


def _loss_of_all(runs: Sequence[tuple[Curve, Status]]) -> str:
    """How these runs were lost, if all of them were."""
    if not all(_is_lost(curve, status) for curve, status in runs):
        return ""
    return "crashes" if runs[0][1] is Status.CRASHED else "ends non-finite"


def _length(pairs: Sequence[Pair]) -> int:
    return min(min(len(pair.without.losses), len(pair.remedied.losses)) for pair in pairs)


def _mean_end(pairs: Sequence[Pair], *, after: bool) -> float:
    curves = [(pair.remedied if after else pair.without) for pair in pairs]
    ends = [curve.until(_length(pairs) or len(curve.losses)).end for curve in curves]
    known = [end for end in ends if end is not None]
    return math.fsum(known) / len(known) if known else math.nan
