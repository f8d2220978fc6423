"""G05: clipping that never acts, while gradients spike and the loss with them."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Clip, OptimizerStep, Place
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.rules.gradients.clip_always_on import clips_by_place
from unstuck.rules.shared import dynamics

rule = Rule(
    code="G05",
    name="clip-too-loose",
    title="clipping never acts, gradients spike and the loss spikes or diverges",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "O22", "O25", "O26", "R08"),
    needs=(OptimizerStep, Clip),
    needs_one_optimizer=True,
)

FEWEST = 10
CAUSE = "The threshold is above even the spikes, so they reach step() at full size."


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """No clip on this line changed a gradient, and a spike raised the loss, or gradients grew until it was NaN."""
    if dynamics.sole_optimizer(record) is None:
        return
    worst = worst_gradient(record)
    if worst is None:
        return
    for place, clips in clips_by_place(record).items():
        if len(clips) >= FEWEST and all(norm <= limit for norm, limit in clips):
            yield _finding(record, place, clips[-1][1], worst)


def worst_gradient(record: Record) -> dynamics.Spike | None:
    """The largest spike that raised the loss, or the largest gradient of a run that diverged."""
    if hurting := dynamics.costly_spikes(record):
        return max(hurting, key=lambda spike: spike.norm)
    failure, norms = dynamics.failure(record), dynamics.grad_norms(record)
    if failure is None or len(norms) < FEWEST:
        return None
    usual = dynamics.median([norm for _, norm in norms[: len(norms) // 2]]) or 0.0
    step, norm = max(norms, key=lambda item: item[1])
    return (
        dynamics.Spike(step, norm, usual, failure.before, failure.after) if norm > dynamics.SPIKE * usual > 0 else None
    )


def _finding(record: Record, place: Place | None, limit: float, worst: dynamics.Spike) -> Finding:
    quiet = [norm for _, norm in dynamics.grad_norms(record) if norm < dynamics.SPIKE * worst.usual]
    better = dynamics.quantile(quiet, 0.9) or worst.usual
    after = (
        "the loss was not finite after it" if worst.after is None else f"the loss rose to {worst.after:.4g} after it"
    )
    return rule.finding(
        f"max_norm={limit:.3g} never cut a gradient: the largest norm, {worst.norm:.3g}, is "
        f"{worst.norm / worst.usual:,.0f} times the usual norm, and {after}.",
        cause=CAUSE,
        fix=f"Set max_norm to about {dynamics.rounded(better)}: 90 % of the normal steps are below it.",
        subject=Subject.at("call", "gradient clipping", place),
        place=place,
        evidence=[
            Evidence("max_norm", limit),
            Evidence("largest gradient norm", worst.norm),
            Evidence("usual norm before it", worst.usual),
            Evidence("at step", worst.step + 1),
            Evidence("loss before", worst.before),
        ],
        severity=Severity.ERROR if worst.after is None else Severity.WARNING,
    )


rule.remedied_by(with_change("ClipGradients", 1.0))
