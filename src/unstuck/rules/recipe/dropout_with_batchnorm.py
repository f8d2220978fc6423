"""R10: dropout right before BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import ModelSeen, ModuleFact, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared import objects

rule = Rule(
    code="R10",
    name="dropout-with-batchnorm",
    title="dropout right before BatchNorm",
    severity=Severity.ADVICE,
    explains=("M13",),
)

BETWEEN = frozenset("ReLU LeakyReLU ELU GELU SiLU Tanh Identity Flatten".split())
"""Layers that change nothing about it."""
CAUSE = (
    "Dropout makes the variance of what follows larger in training than in evaluation, and BatchNorm stores the "
    "variance of training: in eval mode it divides by a number that no longer fits."
)
FIX = "Put Dropout after the BatchNorm (best only before the last layer), or leave one of the two out."


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Neighbours in nn.Sequential, where the order of the layers is the order of execution."""
    for model in setup.models:
        pairs = [pair for module in model.modules if module.kind == "Sequential" for pair in _pairs(model, module)]
        if not pairs:
            continue
        dropout, norm = pairs[0]
        share = dropout.numbers["p"]
        yield rule.finding(
            f"{dropout.kind}(p={share:g}) at {dropout.name} feeds {norm.kind} at {norm.name}"
            + (f", and so in {objects.counted(len(pairs) - 1, 'other place')}." if len(pairs) > 1 else "."),
            cause=CAUSE,
            fix=FIX,
            subject=Subject("module", dropout.name),
            evidence=[
                Evidence("places", len(pairs)),
                Evidence(
                    "variance in training over evaluation", round(1 / (1 - share), 2), "times, of inputs around 0"
                ),
            ],
            confidence=Confidence.LIKELY,
        )


def _pairs(model: ModelSeen, sequential: ModuleFact) -> Iterator[tuple[ModuleFact, ModuleFact]]:
    """Each Dropout with the BatchNorm that is next after it, in layers that only pass it on."""
    pending: ModuleFact | None = None
    for layer in objects.children(model, sequential.name):
        if "Dropout" in layer.kind and 0 < layer.numbers.get("p", 0.0) < 1:
            pending = layer
        elif "BatchNorm" in layer.kind and pending is not None:
            yield pending, layer
            pending = None
        elif layer.kind not in BETWEEN:
            pending = None
