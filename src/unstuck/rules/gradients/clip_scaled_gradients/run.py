"""G03 in a run: clips and steps on gradients that were still scaled, and what GradScaler raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import Clip, OptimizerStep, Place, ScalerUpdate, StepSkipped, Unscale
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Evidence, Finding, Subject
from unstuck.record import Record
from unstuck.rules.gradients.clip_scaled_gradients import APPLIED, CLIPPED, RAISES, Scaling, rule
from unstuck.rules.shared.accumulation import STEADY, StepWindow, close, step_windows
from unstuck.rules.shared.crashes import crash_of
from unstuck.source.reader.knowledge import LARGEST_LIMIT

RAISED = {
    TorchError.UNSCALED_TWICE: (
        Scaling.UNSCALED_TWICE,
        "unscale_()",
        "unscale_() was called twice without update() in between.",
        "Call scaler.unscale_() once, right before clipping.",
    ),
    TorchError.UNSCALED_AFTER_STEP: (
        Scaling.UNSCALED_TWICE,
        "unscale_()",
        "scaler.unscale_() was called after scaler.step().",
        "Call scaler.unscale_() before scaler.step().",
    ),
    TorchError.STEPPED_TWICE: (
        Scaling.NO_UPDATE,
        "step()",
        "scaler.step() was called twice without scaler.update() in between.",
        "Call scaler.update() after scaler.step().",
    ),
}
"""By what GradScaler raises: the variant, the method, the message and the fix."""


def find(record: Record) -> Iterator[Finding]:
    """Clips and plain steps on scaled gradients, and what GradScaler raised."""
    every = step_windows(record, alone=False)
    windows = [window for window in every if any(backward.scaled for backward in window.backwards)]
    yield from _clipped(record, windows)
    yield from _applied(record, windows)
    yield from _crashed(record)
    yield from _updated_without_step(record)


def _clipped(record: Record, windows: Sequence[StepWindow]) -> Iterator[Finding]:
    through = [window for window in windows if isinstance(window.step, StepSkipped) or window.step.through_scaler]
    cut = [clip for window in through if (clip := _scaled_clip(window)) is not None]
    if len(cut) < STEADY or len(cut) < len(through) / 2:
        return
    last, scale = cut[-1], _scale(record)
    used = [window.step.grad_norm for window in through if isinstance(window.step, OptimizerStep)]
    evidence = [Evidence("clip calls recorded", len(cut))]
    if last.norm is not None and last.limit is not None:
        evidence.append(Evidence("norm before clipping", last.norm, "", last.limit))
    if scale is not None:
        evidence.append(Evidence("scale", scale))
    if used and used[-1] is not None:
        evidence.append(Evidence("norm that step() applied", used[-1]))
    yield _finding(
        Scaling.CLIPPED,
        f"{len(cut)} of {len(through)} recorded steps clipped gradients that were still scaled.",
        CLIPPED.format(times=_times(scale)),
        "Call scaler.unscale_(optimizer) right before clipping.",
        last.place,
        [through[-1].step.place],
        evidence,
    )


def _scaled_clip(window: StepWindow) -> Clip | None:
    """The clip that cut gradients before anything unscaled them."""
    for event in window.after_backward():
        if isinstance(event, Unscale):
            return None
        if isinstance(event, Clip) and event.kind == "norm" and event.limit is not None:
            cuts = event.limit < LARGEST_LIMIT and (event.norm is None or event.norm > event.limit)
            return event if cuts else None
    return None


def _applied(record: Record, windows: Sequence[StepWindow]) -> Iterator[Finding]:
    plain = [window for window in windows if isinstance(window.step, OptimizerStep) and not window.step.through_scaler]
    raw = [window for window in plain if _is_applied_raw(window)]
    if len(raw) < STEADY:
        return
    scale, step = _scale(record), raw[-1].step
    assert isinstance(step, OptimizerStep)
    norms = [Evidence("norm that step() applied", step.grad_norm)] if step.grad_norm is not None else []
    yield _finding(
        Scaling.PLAIN_STEP,
        f"{step.optimizer}.step() applied scaled gradients in {len(raw)} measured steps.",
        APPLIED.format(times=_times(scale)),
        "Call scaler.step(optimizer) and then scaler.update().",
        step.place,
        [raw[-1].backwards[-1].place],
        norms,
    )


def _is_applied_raw(window: StepWindow) -> bool:
    """Did the step use the norm that the scaled backward produced, so that nothing divided by hand in between?"""
    made, used = window.backwards[-1].grad_norm, getattr(window.step, "grad_norm", None)
    touched = any(isinstance(event, Unscale | Clip) for event in window.after_backward())
    return bool(made and used) and not touched and close(made or 0.0, used or 0.0)


def _crashed(record: Record) -> Iterator[Finding]:
    crash = crash_of(record, *RAISED)
    if crash is None:
        return
    variant, method, message, fix = next(value for kind, value in RAISED.items() if kind.is_in(crash.message))
    updates = sum(1 for _ in record.of(ScalerUpdate))
    evidence = [Evidence("steps before it", crash.step), Evidence("update() calls recorded", updates)]
    yield _finding(variant, message, RAISES.format(method=method), fix, crash.place, (), evidence)


def _updated_without_step(record: Record) -> Iterator[Finding]:
    """update() raises when no gradient went through the scaler: the optimizer was stepped directly, or not at all."""
    crash = crash_of(record, TorchError.NO_INF_CHECKS)
    if crash is None:
        return
    past = [step for step in record.of(OptimizerStep) if not step.through_scaler]
    why = f"{past[-1].optimizer}.step() was called instead of scaler.step()" if past else "scaler.step() was not called"
    yield _finding(
        Scaling.PLAIN_STEP,
        f"scaler.update() failed because {why}.",
        APPLIED.format(times=_times(_scale(record))),
        "Call scaler.step(optimizer) and then scaler.update().",
        past[-1].place if past else crash.place,
        [crash.place],
        [Evidence("steps without the scaler", len(past))],
    )


def _scale(record: Record) -> float | None:
    return next((update.scale for update in record.of(ScalerUpdate) if update.scale is not None), None)


def _times(scale: float | None) -> str:
    return f" by {scale:,.0f}" if scale is not None else ""


def _finding(
    variant: Scaling,
    message: str,
    cause: str,
    fix: str,
    place: Place | None,
    related: Sequence[Place | None],
    evidence: Sequence[Evidence],
) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "scaled gradients", place),
        place=place,
        related=related,
        evidence=evidence,
        variant=variant,
    )
