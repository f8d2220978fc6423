"""M09 in live objects: attributes that should freeze or resize, compared with the parameters they did not change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unstuck.events import ModelSeen, ModuleFact, Setup
from unstuck.rules.shared import objects

SWITCHES = "requ"
SIDES = {
    "Linear": ("out_features", "in_features"),
    "Conv1d": ("out_channels", "in_channels"),
    "Conv2d": ("out_channels", "in_channels"),
    "Conv3d": ("out_channels", "in_channels"),
    "Embedding": ("num_embeddings", "embedding_dim"),
}
"""Names of the first and second axis of the weight."""


class Unfrozen(NamedTuple):
    """A module with a switch that nothing reads, whose parameters still train."""

    model: str
    module: str
    switch: str
    parameters: int


class Unresized(NamedTuple):
    """A layer whose attribute and weight disagree about a size."""

    model: str
    module: str
    attribute: str
    says: int
    has: int


def unfrozen(setup: Setup) -> Iterator[Unfrozen]:
    """Modules with `requires_grad = False` as a plain attribute, or misspelt, whose parameters are all trainable."""
    for model in setup.models:
        for module in model.modules:
            switch = next((name for name in module.numbers if name.startswith(SWITCHES)), "")
            own = objects.parameters_in(model, module.name) if switch else []
            if own and all(fact.trainable for fact in own):
                yield Unfrozen(model.model, module.name or model.model, switch, len(own))


def unresized(setup: Setup) -> Iterator[Unresized]:
    """torch layers whose weight still has its original size."""
    for model in setup.models:
        for module in model.modules:
            yield from _sides(model, module)


def _sides(model: ModelSeen, module: ModuleFact) -> Iterator[Unresized]:
    name = f"{module.name}.weight" if module.name else "weight"
    weight = next((fact for fact in model.parameters if fact.name == name), None)
    plain = module.kind in SIDES and weight is not None and len(weight.shape) >= 2
    if not plain or weight is None:
        return
    for side, attribute in enumerate(SIDES[module.kind]):
        says = module.numbers.get(attribute)
        grouped = attribute == "in_channels" and says is not None and says % max(weight.shape[1], 1) == 0
        if says is not None and says != weight.shape[side] and not grouped:
            yield Unresized(model.model, module.name or model.model, attribute, int(says), weight.shape[side])
