"""G08: gradients explode, and the loss spikes or diverges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unstuck.events import Clip, NonFinite, OptimizerSeen, OptimizerStep, TensorGauges
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.record.trend import Direction
from unstuck.rule import Remedies, Rule
from unstuck.rules.shared import dynamics

rule = Rule(
    code="G08",
    name="exploding-gradients",
    title="gradients explode (huge, spiking or growing) and the loss spikes or diverges",
    severity=Severity.ERROR,
    explains=("G10", "G18", "O22", "O25", "O26", "R08"),
    needs=(OptimizerStep, TensorGauges),
    needs_one_optimizer=True,
)

HUGE = 100.0
GROWN = 10.0
"""As a multiple of the norm in the first quarter of the run."""
FEWEST = 8
SOON = 2
"""A value may overflow up to this many steps after a huge gradient."""
CAUSE = "step() applies such a gradient like any other. The weights land far away, where the gradients are even larger."
CLIP = (
    "Call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={limit}) between backward() and step(). "
    "Then check the layers listed here: initialise them (He, Xavier) and normalise their inputs."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Huge, spiking or growing norms, and a loss that jumped, rose or became NaN."""
    norms = dynamics.grad_norms(record)
    what = None
    if dynamics.sole_optimizer(record):
        what = _explosion(record) if len(norms) >= 3 else _at_once(record, norms)
    if what is None:
        return
    (step, norm), words, consequence = what
    usual = dynamics.median([value for at, value in norms if at < step][-50:]) or norms[0][1]
    clips = next((clip.place for clip in record.of(Clip)), None)
    broken = dynamics.trend(record).word == Direction.NON_FINITE
    yield rule.finding(
        f"{words}, and {consequence}.",
        cause=CAUSE,
        fix=CLIP.format(limit=_limit([value for at, value in norms if at < step] or [usual])),
        subject=Subject("loop", "training loop"),
        place=dynamics.step_place(record),
        related=(clips,),
        evidence=[
            Evidence("gradient norm", norm, "", HUGE),
            Evidence("usual norm before it", usual),
            Evidence("at step", step + 1),
            Evidence("largest gradients", top_layers(record, step)),
        ],
        severity=Severity.ERROR if broken else Severity.WARNING,
        confidence=Confidence.CERTAIN if broken else Confidence.LIKELY,
    )


def _explosion(record: Record) -> tuple[tuple[int, float], str, str] | None:
    """The worst step, what the gradients did, and what followed."""
    norms = dynamics.grad_norms(record)
    hurting = dynamics.costly_spikes(record)
    if hurting:
        worst = max(hurting, key=lambda spike: spike.norm)
        after = (
            "the loss was not finite after it"
            if worst.after is None
            else f"the loss went from {worst.before:.4g} to {worst.after:.4g} after it"
        )
        times = f"{worst.norm / worst.usual:,.0f} times the usual {worst.usual:.3g}"
        return (
            (worst.step, worst.norm),
            f"At step {worst.step + 1} the gradient norm was {worst.norm:.3g}, {times}",
            after,
        )
    failure = dynamics.failure(record)
    if failure is None:
        return None
    worst_step = max(norms, key=lambda item: item[1])
    early = dynamics.median([norm for _, norm in norms[: max(3, len(norms) // 4)]]) or 0.0
    late = dynamics.median([norm for _, norm in norms[-max(3, len(norms) // 4) :]]) or 0.0
    if len(norms) >= FEWEST and late > GROWN * early > 0:
        return worst_step, f"The gradient norm grew from {early:.3g} to {late:.3g}", f"the loss {failure.word}"
    if (dynamics.median([norm for _, norm in norms]) or 0.0) > HUGE:
        return worst_step, f"The gradient norm is {late:.3g}, where 0.1 to 10 is usual", f"the loss {failure.word}"
    return None


def _at_once(record: Record, norms: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], str, str] | None:
    """A first step so large that nothing is finite after it. Adam's steps do not grow with the gradient."""
    kinds = [seen.kind for seen in record.of(OptimizerSeen)]
    broken = min((event.step for event in record.of(NonFinite)), default=None)
    if broken is None or not norms or norms[-1][1] <= HUGE or not all("SGD" in kind for kind in kinds):
        return None
    step, norm = norms[-1]
    if not step < broken <= step + SOON:
        return None
    words = f"At step {step + 1} the gradient norm was {norm:.3g}, where 0.1 to 10 is usual"
    return (step, norm), words, f"step {broken + 1} produced a value that was not finite"


def _limit(norms: list[float]) -> str:
    """A threshold that leaves normal steps alone: their 90th percentile, or 1 if all are huge."""
    quiet = dynamics.quantile(norms, 0.9) or 1.0
    return dynamics.rounded(quiet if math.isfinite(quiet) and quiet < HUGE else 1.0)


def top_layers(record: Record, step: int) -> list[str]:
    """The parameters with the largest gradients in this step, or in the last one measured before."""
    found = []
    for series in dynamics.tensors(record):
        measured = [
            norm for at, norm in zip(series.steps, series.grad_norm, strict=True) if norm is not None and at <= step
        ]
        if measured:
            found.append((measured[-1], series.name))
    return [f"{name} {norm:.3g}" for norm, name in sorted(found, reverse=True)[:3]]


@rule.remedied_by
def remedied(finding: Finding) -> Remedies:
    """Clip to the usual limit, or use a tenth of the learning rate."""
    from unstuck.interventions import ClipGradients, SetRate

    yield (ClipGradients(1.0),)
    yield (SetRate(0.1),)
