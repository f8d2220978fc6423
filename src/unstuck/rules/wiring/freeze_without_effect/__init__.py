"""M09: a freeze or a resize that changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from unstuck.events import ModelSeen, Setup
from unstuck.findings import Finding, Severity, Variant
from unstuck.rule import Rule, find_in


class NoEffect(Variant):
    """What was written, and why nothing follows from it."""

    ON_MODULE = "on-module", "requires_grad set on a module instead of its parameters"
    UNKNOWN_NAME = "unknown-name", "an attribute that PyTorch does not have, such as require_grad or trainable"
    NOT_ASSIGNED = "not-assigned", "a comparison, or requires_grad_ without a call"
    NOT_RESIZED = "not-resized", "a size set on a layer that already has its weights"


CAUSES = {
    NoEffect.ON_MODULE: "On a module this creates an attribute that nothing reads: its parameters keep "
    "requires_grad=True and continue to train.",
    NoEffect.UNKNOWN_NAME: "PyTorch has no attribute of this name. Python creates it, nothing reads it, and the "
    "parameters continue to train.",
    NoEffect.NOT_ASSIGNED: "The result of this expression is discarded: nothing is set, and the parameter continues "
    "to train.",
    NoEffect.NOT_RESIZED: "The weights are created with the layer. This changes only the number it prints; its output "
    "keeps its shape.",
}

rule = Rule(
    code="M09",
    name="freeze-without-effect",
    title="a freeze or a resize that changes nothing",
    severity=Severity.ERROR,
    explains=("O17", "O19", "O25", "O26"),
    needs=(ModelSeen,),
    variants=NoEffect.titles(),
)

rule.in_source(find_in("unstuck.rules.wiring.freeze_without_effect.source"))
rule.in_run(find_in("unstuck.rules.wiring.freeze_without_effect.run"))


@rule.in_setup
def in_setup(setup: Setup) -> Iterable[Finding]:
    """Attributes of modules that contradict their parameters."""
    from unstuck.rules.wiring.freeze_without_effect.setup import find

    return find(setup)
