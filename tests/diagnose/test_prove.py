"""The decision rule of a proof: pairs of curves in, a verdict and a sentence out."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
import pytest

from unstuck.diagnose.prove import Remedied, judged, remedies_of
from unstuck.findings import Finding, Severity, Subject, Witness, merge
from unstuck.findings.curve import Curve
from unstuck.findings.results import Pair, Proof, Status
from unstuck.interventions import ClearGradients, GiveLoss
from unstuck.rule import find_rule
from unstuck.rules.convergence.nll_needs_log_probs import Input
from unstuck.trials.pairs import decide, gain_of

STEPS = 300


def curve(first: float, last: float, steps: int = STEPS) -> Curve:
    """A loss that falls quickly, then lies where it ends."""
    values = [last + (first - last) * max(0.0, 1 - 4 * step / STEPS) for step in range(steps)]
    return Curve(tuple(range(steps)), tuple(values))


def broken(first: float) -> Curve:
    return Curve((0, 1, 2), (first, first, None))


def pair(without: Curve, remedied: Curve, status: str = "stopped", remedied_status: str = "stopped") -> Pair:
    return Pair(0, without, remedied, Status(status), Status(remedied_status))


def finding(code: str = "O04", message: str = "wrong") -> Finding:
    rule = find_rule(code)
    assert rule is not None
    seen = rule.finding(message, cause="c", fix="f", subject=Subject("loop", "it"), severity=Severity.ERROR)
    return msgspec.structs.replace(seen, witness=Witness.RUN)


def proof_of(*pairs: Pair, changes_loss: bool = False) -> Proof:
    diagnosis = merge([finding()])[0]
    return judged(Remedied(diagnosis, (ClearGradients(),), "it", changes_loss), pairs, STEPS)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.5,), "confirmed"),
        ((0.85,), "undecided"),
        ((1.5,), "worse"),
        ((0.98,), "no effect"),
        ((0.5, 0.97), "undecided"),
        ((0.9, 0.9, 0.9), "confirmed"),
        ((0.9, 0.9, 0.99), "undecided"),
        ((0.5, 0.1, 0.001), "confirmed"),
        ((0.96, 1.03, 0.98), "no effect"),
        ((1.2, 1.22, 1.2), "worse"),
        ((1.06, 1.055, 1.04), "no effect"),
        ((0.2, 1.5, 0.7), "undecided"),
    ],
)
def test_verdicts_follow_from_the_shares(shares: tuple[float, ...], verdict: str) -> None:
    assert decide([math.log(share) for share in shares])[0] == verdict


def test_the_interval_is_students() -> None:
    interval = decide([math.log(share) for share in (0.8, 0.9, 1.0)])[1]
    assert interval is not None
    assert interval == pytest.approx((-0.3868, 0.1678), abs=1e-3)


def test_a_lower_loss_is_told_in_numbers_and_with_its_interval() -> None:
    proof = proof_of(
        pair(curve(2, 1), curve(2, 0.5)), pair(curve(2, 1), curve(2, 0.4)), pair(curve(2, 1), curve(2, 0.6))
    )
    assert proof.verdict == "confirmed"
    assert proof.difference == pytest.approx(0.493 - 1, abs=1e-3)
    assert proof.interval is not None
    assert proof.interval[0] < proof.difference < proof.interval[1] < 0
    assert proof.sentence.startswith("after 300 steps the loss is 0.5 instead of 1, over 3 seeds, -70 %")


def test_curves_are_compared_over_the_steps_that_both_have() -> None:
    assert gain_of(pair(curve(2, 1, 150), curve(2, 1)), STEPS) == pytest.approx(0.0)


def test_a_run_that_crashes_or_ends_in_nan_has_lost() -> None:
    well = curve(2, 1)
    crashed = proof_of(pair(Curve(), well, "crashed"))
    assert crashed.verdict == "confirmed"
    assert crashed.sentence == "without it the run crashes; with it, it runs for 300 steps, to a loss of 1 (one seed)."
    assert proof_of(pair(broken(2), well)).verdict == "confirmed"
    worse = proof_of(pair(well, Curve(), remedied_status="crashed"))
    assert (worse.verdict, worse.sentence) == ("worse", "with it the run crashes (one seed).")
    both = proof_of(pair(broken(2), broken(2)))
    assert (both.verdict, both.sentence) == ("no effect", "with and without it the run ends non-finite (one seed).")


def test_no_interval_is_told_of_runs_that_were_lost_or_won_by_any_measure() -> None:
    proof = proof_of(*(pair(curve(4, 4), curve(4, 1e-12)) for _ in range(3)))
    assert proof.verdict == "confirmed"
    assert proof.interval is None
    assert "confidence" not in proof.sentence


@pytest.mark.parametrize("cut", [Curve(), curve(2, 1, 100)])
def test_a_run_that_its_deadline_cut_off_proves_nothing(cut: Curve) -> None:
    for tried in (pair(cut, curve(2, 0.1), "killed"), pair(curve(2, 0.1), cut, remedied_status="killed")):
        proof = proof_of(tried)
        assert proof.verdict == "undecided"
        assert "was cut off" in proof.sentence


def test_a_run_that_could_not_be_started_proves_nothing() -> None:
    assert proof_of(pair(curve(2, 1), Curve(), remedied_status="failed")).verdict == "undecided"


def test_a_run_that_crashed_has_lost_however_early() -> None:
    assert proof_of(pair(curve(2, 1, 3), curve(2, 1), "crashed")).verdict == "confirmed"


def test_pairs_that_tell_nothing_are_left_out() -> None:
    proof = proof_of(pair(curve(2, 1), curve(2, 0.5)), pair(Curve(), curve(2, 0.5), "killed"))
    assert proof.verdict == "confirmed"
    assert "over one seed" in proof.sentence
    assert len(proof.pairs) == 2


def test_losses_below_zero_are_compared_by_how_far_they_moved() -> None:
    lower = proof_of(pair(curve(-1, -1), curve(-1, -5)))
    assert lower.verdict == "confirmed"
    assert lower.difference is None
    assert proof_of(pair(curve(-1, -5), curve(-1, -1))).verdict == "worse"
    assert proof_of(pair(curve(1, 0.5), curve(1, -3))).verdict == "confirmed"


def test_noise_of_a_loss_below_zero_that_does_not_move_is_no_effect() -> None:
    assert proof_of(pair(curve(-1, -1.001), curve(-1, -1.002))).verdict == "no effect"
    assert proof_of(pair(curve(0, 0), curve(0, 0))).verdict == "no effect"


def test_losses_that_are_counted_differently_are_measured_against_their_own_starts() -> None:
    assert proof_of(pair(curve(200, 200), curve(2, 2)), changes_loss=True).verdict == "no effect"
    assert proof_of(pair(curve(2, 2), curve(200, 20)), changes_loss=True).verdict == "confirmed"


def test_another_loss_below_zero_cannot_be_compared() -> None:
    """`nll_loss` of raw scores sinks without end; the loss that replaces it does not."""
    proof = proof_of(pair(curve(0.1, -5000), curve(2.3, 0.1)), changes_loss=True)
    assert proof.verdict == "undecided"
    assert "cannot be compared" in proof.sentence


@pytest.mark.parametrize(("variant", "form"), [(Input.RAW_SCORES, "log-softmax"), (Input.PROBABILITIES, "log")])
def test_nll_loss_is_given_the_logarithm_it_lacks_and_said_to_be_another_loss(
    variant: Input, form: Literal["log-softmax", "log"]
) -> None:
    found = msgspec.structs.replace(finding("O16", "nll_loss expects log-probabilities."), variant=variant)
    ways = [(way.changes, way.changes_loss) for way in remedies_of(merge([found])[0])]
    assert ways == [((GiveLoss(form),), True)]
