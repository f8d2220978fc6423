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
"""Layers in between that do not matter."""
CAUSE = (
    "Dropout makes the variance larger in training than in evaluation. BatchNorm stores the training "
    "variance, so in eval mode it divides by the wrong number."
)
FIX = "Put Dropout after BatchNorm (ideally only before the last layer), or remove one of the two."


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
            + (f", and so does {objects.counted(len(pairs) - 1, 'other pair')}." if len(pairs) > 1 else "."),
            cause=CAUSE,
            fix=FIX,
            subject=Subject("module", dropout.name),
            evidence=[
                Evidence("places", len(pairs)),
                Evidence(
                    "variance in training over evaluation", round(1 / (1 - share), 2), "times, for inputs around 0"
                ),
            ],
            confidence=Confidence.LIKELY,
        )


def _pairs(model: ModelSeen, sequential: ModuleFact) -> Iterator[tuple[ModuleFact, ModuleFact]]:
    """Each Dropout with the BatchNorm that follows it, with only harmless layers in between."""
    pending: ModuleFact | None = None
    for layer in objects.children(model, sequential.name):
        if "Dropout" in layer.kind and 0 < layer.numbers.get("p", 0.0) < 1:
            pending = layer
        elif "BatchNorm" in layer.kind and pending is not None:
            yield pending, layer
            pending = None
        elif layer.kind not in BETWEEN:
            pending = None
