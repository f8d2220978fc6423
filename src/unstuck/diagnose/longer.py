"""What to do with the time that is left when runs did not decide: the same again, with more steps or more seeds."""

from __future__ import annotations

from unstuck.diagnose.prove import MOST_SEEDS, SEEDS
from unstuck.findings.results import Experiment, Proof
from unstuck.trials.context import Context

LONGER = 4
"""Times the steps."""
CLEARLY_LONGER = 1.5
"""Fewer than so many times the steps would show the same again."""
LONG_ENOUGH = 200
"""Steps from which a remedy without effect is one."""
RUNS = {"overfit": 1, "baseline": 6}
"""Experiments that can be longer, and how many runs they take."""


def longer_proof(context: Context, proof: Proof) -> tuple[int, int] | None:
    """With how many steps and seeds to try a remedy again; None if it is decided, or there is no time for it."""
    too_short = proof.verdict == "no effect" and proof.steps < LONG_ENOUGH
    if proof.verdict != "undecided" and not too_short:
        return None
    wanted = max(LONG_ENOUGH, LONGER * proof.steps)
    steps = context.plan(2 * SEEDS, wanted=wanted) or context.plan(2, wanted=wanted)
    if steps >= CLEARLY_LONGER * proof.steps:
        return steps, SEEDS
    more_seeds = not too_short and len(proof.pairs) < MOST_SEEDS
    if more_seeds and context.plan(2 * MOST_SEEDS, wanted=proof.steps) >= proof.steps:
        return proof.steps, MOST_SEEDS
    return None


def longer_experiment(context: Context, done: Experiment) -> int | None:
    """With how many steps to make an experiment again; None if they are not what it lacks, or there is no time."""
    if done.name not in RUNS or done.verdict != "undecided" or not done.measures.get("steps"):
        return None
    if done.name == "overfit" and not done.measures.get("slow"):
        return None
    wanted = LONGER * int(done.measures["steps"] or 0)
    return wanted if context.plan(RUNS[done.name], wanted=wanted) >= wanted else None
