"""M09 in live objects: attributes that should freeze or resize, compared with the parameters they did not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unstuck.events import Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rules.shared import objects
from unstuck.rules.wiring.freeze_without_effect import CAUSES, NoEffect, rule

SWITCHES = "requ"
AXES = {
    "Linear": ("out_features", "in_features"),
    "Conv1d": ("out_channels", "in_channels"),
    "Conv2d": ("out_channels", "in_channels"),
    "Conv3d": ("out_channels", "in_channels"),
    "Embedding": ("num_embeddings", "embedding_dim"),
}
"""Names of the first and second axis of the weight."""


class Unfrozen(NamedTuple):
    """A module with a switch that nothing reads, whose parameters still train."""

    module: str
    switch: str
    parameters: int


class Unresized(NamedTuple):
    """A layer whose attribute and weight disagree about a size."""

    module: str
    attribute: str
    says: int
    has: int


def find(setup: Setup) -> Iterator[Finding]:
    """Attributes of modules that contradict their parameters."""
    place = next((optimizer.place for optimizer in setup.optimizers), None)
    for freeze in unfrozen(setup):
        yield rule.finding(
            f"{freeze.module} has the attribute {freeze.switch} = False, but all of its {freeze.parameters} "
            "parameters are trainable.",
            cause=CAUSES[NoEffect.ON_MODULE],
            fix="Call requires_grad_(False) on the module, with the underscore.",
            subject=Subject("module", freeze.module),
            place=place,
            evidence=[Evidence("trainable parameters in it", freeze.parameters)],
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=NoEffect.ON_MODULE,
        )
    for layer in unresized(setup):
        yield rule.finding(
            f"{layer.module}.{layer.attribute} is {layer.says}, but its weight has {layer.has}.",
            cause=CAUSES[NoEffect.NOT_RESIZED],
            fix="Replace the layer with a new one of the size you want.",
            subject=Subject("module", layer.module),
            place=place,
            evidence=[Evidence(layer.attribute, layer.says), Evidence("axis of the weight", layer.has)],
            confidence=Confidence.LIKELY,
            severity=Severity.WARNING,
            variant=NoEffect.NOT_RESIZED,
        )


def unfrozen(setup: Setup) -> Iterator[Unfrozen]:
    """Modules with `requires_grad = False` as a plain attribute, or misspelt, whose parameters are all trainable."""
    for model in setup.models:
        for module in model.modules:
            switch = next((name for name in module.numbers if name.startswith(SWITCHES)), "")
            own = objects.parameters_in(model, module.name) if switch else []
            if own and all(fact.trainable for fact in own):
                yield Unfrozen(module.name or model.model, switch, len(own))


def unresized(setup: Setup) -> Iterator[Unresized]:
    """torch layers whose weight still has its original size."""
    for model in setup.models:
        shapes = {fact.name: fact.shape for fact in model.parameters}
        for module in model.modules:
            shape = shapes.get(f"{module.name}.weight" if module.name else "weight", ())
            if module.kind not in AXES or len(shape) < 2:
                continue
            for size, attribute in zip(shape, AXES[module.kind], strict=False):
                says = module.numbers.get(attribute)
                grouped = attribute == "in_channels" and says is not None and says % max(shape[1], 1) == 0
                if says is not None and says != size and not grouped:
                    yield Unresized(module.name or model.model, attribute, int(says), size)
