"""G03: gradients clipped or applied while GradScaler still has them scaled, or its methods called out of order."""

from __future__ import annotations

from unstuck.events import Backward
from unstuck.findings import Severity, Variant
from unstuck.rule import Rule, find_in, with_change


class Scaling(Variant):
    """What happens to the scaled gradients."""

    CLIPPED = "clipped", "gradients clipped before unscale_()"
    PLAIN_STEP = "plain-step", "optimizer.step() called instead of scaler.step()"
    UNSCALED_TWICE = "unscaled-twice", "unscale_() called twice, or after step(), before update()"
    NO_UPDATE = "no-update", "scaler.step() called without scaler.update()"


rule = Rule(
    code="G03",
    name="clip-scaled-gradients",
    title="gradients clipped or applied while GradScaler still has them scaled",
    severity=Severity.ERROR,
    explains=("G05", "G08", "G10", "G18", "M14", "O22", "O25", "O26", "R08"),
    needs=(Backward,),
    variants=Scaling.titles(),
)

CLIPPED = (
    "scale() multiplies the loss{times}, and so the gradients. Clipping cuts the multiplied gradients to the limit, "
    "and step() then divides them again: the update is close to zero."
)
APPLIED = (
    "scale() multiplies the loss{times}. Only scaler.step() divides the gradients again and skips the steps that "
    "overflowed."
)
RAISES = (
    "GradScaler allows one {method} per optimizer between two calls of update(), and raises RuntimeError otherwise."
)

rule.in_source(find_in("unstuck.rules.gradients.clip_scaled_gradients.source"))
rule.in_run(find_in("unstuck.rules.gradients.clip_scaled_gradients.run"))

rule.remedied_by(with_change("UnscaleBeforeClip"))
