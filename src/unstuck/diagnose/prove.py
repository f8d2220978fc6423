"""Tries the remedies of findings: the same script, the same seeds, the same steps, with only that change.

`trials.pairs` holds the decision rule.
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
from unstuck.record.trainings import players
from unstuck.rule import find_rule
from unstuck.trials.context import Context
from unstuck.trials.pairs import (
    LIMIT,
    SEEDS,
    SMALLEST_EFFECT,
    both_crash_late,
    decide,
    gain_of,
    is_cut_short,
    is_lost,
    is_same,
    run_pairs,
)

GAME = "undecided: several optimizers have a loss each, and none of these says whether the fix helps."
LONG_ENOUGH = 200
"""Steps from which on a remedy that shows nothing has no effect, if the script takes as many."""


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
        if not all(is_same(pair.without, pair.remedied) for pair in proof.pairs):
            best = best or (proof, remedied)
    return best


def try_remedy(context: Context, remedied: Remedied, steps: int, seeds: int = SEEDS) -> Proof:
    """First one pair of runs; more of them if the first shows anything at all."""
    code = remedied.diagnosis.lead.code
    context.tell(f"trying the remedy of {code}: {remedied.words}")
    pairs = run_pairs(context, code, remedied.changes, [0], steps)
    first = gain_of(pairs[0], steps, remedied.changes_loss)
    shows = first is not None and abs(first) > math.log1p(SMALLEST_EFFECT) / 2
    if shows and context.plan(2 * (seeds - 1), wanted=steps) >= 0.9 * steps:
        pairs += run_pairs(context, code, remedied.changes, range(1, seeds), steps)
    proof = judged(remedied, pairs, steps)
    available = context.available_steps
    is_whole = steps >= LONG_ENOUGH or (available is not None and steps >= available)
    if proof.verdict is ProofVerdict.NO_EFFECT and not is_whole:
        return msgspec.structs.replace(proof, verdict=ProofVerdict.UNDECIDED)
    if proof.verdict in (ProofVerdict.NO_EFFECT, ProofVerdict.WORSE) and _is_game(context):
        return msgspec.structs.replace(proof, verdict=ProofVerdict.UNDECIDED, sentence=GAME)
    return proof


def _is_game(context: Context) -> bool:
    """Do several optimizers each minimise a loss of their own? What is good for one may be bad for another."""
    record = context.outcomes[0].record_or_none() if context.outcomes else None
    return record is not None and len(players(record)) > 1


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


def _has_share(pair: Pair) -> bool:
    return all(curve.end is not None and curve.end > 0 for curve in (pair.without, pair.remedied))


def _sentence(proof: Proof, compared: Sequence[Pair], changes_loss: bool) -> str:
    if not compared:
        return _why_uncompared(proof.pairs, proof.steps)
    seeds = "one seed" if len(compared) == 1 else f"{len(compared)} seeds"
    without = _loss_of_all([(pair.without, pair.without_status) for pair in compared])
    remedied = _loss_of_all([(pair.remedied, pair.remedied_status) for pair in compared])
    crash_late = all(map(both_crash_late, compared))
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
    if any(is_cut_short(pair.without, pair.without_status, steps) for pair in pairs):
        return "the run as it is was cut off before it had shown enough."
    if any(is_cut_short(pair.remedied, pair.remedied_status, steps) for pair in pairs):
        return "the run with it was cut off before it had shown enough."
    return "it is another loss with it, and the two cannot be compared."


def _loss_of_all(runs: Sequence[tuple[Curve, Status]]) -> str:
    """How these runs were lost, if all of them were."""
    if not all(is_lost(curve, status) for curve, status in runs):
        return ""
    return "crashes" if runs[0][1] is Status.CRASHED else "ends non-finite"


def _length(pairs: Sequence[Pair]) -> int:
    return min(min(len(pair.without.losses), len(pair.remedied.losses)) for pair in pairs)


def _mean_end(pairs: Sequence[Pair], *, after: bool) -> float:
    curves = [(pair.remedied if after else pair.without) for pair in pairs]
    ends = [curve.until(_length(pairs) or len(curve.losses)).end for curve in curves]
    known = [end for end in ends if end is not None]
    return math.fsum(known) / len(known) if known else math.nan
