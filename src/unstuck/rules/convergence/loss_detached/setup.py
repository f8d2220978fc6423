"""O03 in live objects: the loss of the probed batch has no graph, or does not depend on some layers."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.convergence.loss_detached import CAUSE, CUT_IN_MODEL_FIX, Detached, rule
from unstuck.rules.shared import objects

UNUSED = "The loss does not depend on them, so they keep their initial values, and DistributedDataParallel fails."
SOME_BATCHES = pattern(r"(?i)expert|moe|branch")
"""Names of parameters that only some batches reach."""


def find(setup: Setup) -> Iterator[Finding]:
    """A loss without a graph, or else parameters that it does not depend on."""
    cut = [backward for backward in setup.backwards if backward.requires_grad is False]
    if cut and any(fact.trainable for model in setup.models for fact in model.parameters):
        yield rule.finding(
            "The loss of the batch is cut off the graph, so backward() cannot compute gradients.",
            cause=CAUSE,
            fix="Remove what cuts the graph in the model or the loss function: item(), detach(), .data or no_grad().",
            subject=Subject("loss", "loss of the batch"),
            place=cut[0].place,
            variant=Detached.CUT,
        )
    elif setup.trial is not None:
        given = {fact.key for optimizer in setup.optimizers for fact in optimizer.parameters}
        missing = [fact for fact in setup.missing_gradients if not given or fact.key in given]
        before_cut = [fact for fact in missing if fact.name.rpartition(".")[0] in setup.trial.cut_off]
        unused = [fact for fact in missing if fact not in before_cut and not SOME_BATCHES.search(fact.name)]
        if before_cut:
            names = [fact.name for fact in before_cut]
            yield _without_gradient(setup, Detached.CUT_IN_MODEL, names, CAUSE, CUT_IN_MODEL_FIX)
        if unused:
            names = [fact.name for fact in unused]
            fix = "Use them in forward(), or remove them from the model."
            yield _without_gradient(setup, Detached.UNUSED_PARAMETERS, names, UNUSED, fix)


def _without_gradient(setup: Setup, variant: Detached, names: list[str], cause: str, fix: str) -> Finding:
    cut = variant is Detached.CUT_IN_MODEL
    trainable = sum(fact.trainable for model in setup.models for fact in model.parameters)
    reason = "belong to layers that run" if cut else "are not used in the forward pass"
    listed = objects.listed(names)
    return rule.finding(
        f"{len(names)} of {trainable} trainable parameters get no gradient from the batch; they {reason} ({listed}).",
        cause=cause,
        fix=fix,
        subject=Subject("parameter", listed),
        evidence=[Evidence("trainable parameters without a gradient", f"{len(names)} of {trainable}")],
        severity=Severity.WARNING if cut else Severity.ADVICE,
        confidence=Confidence.LIKELY,
        variant=variant,
    )
