"""Parameter groups for an optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from unstuck.helpers.layers import is_norm, named

Group: TypeAlias = dict[str, Any]


def decay_groups(model: nn.Module, weight_decay: float = 0.01, *, no_decay: Iterable[str] = ()) -> list[Group]:
    """Two groups for the optimizer: weights that decay, and biases, norm gains and other vectors that do not.

    Parameters whose name contains one of `no_decay` do not decay either. A tied weight appears once, a frozen one not.
    """
    exempt = _exempt(model, [*no_decay])
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("decay_groups() found no trainable parameter in the model: are they all frozen?")
    groups = [
        {"params": [p for p in trainable if p not in exempt], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p in exempt], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def layerwise_lr(
    model: nn.Module,
    lr: float,
    decay: float = 0.9,
    *,
    layers: Sequence[nn.Module] | None = None,
    weight_decay: float | None = None,
) -> list[Group]:
    """One group per layer: the last learns with `lr`, each layer before it with `decay` times that of the next.

    Layers are the model's children in order, with lists of blocks taken apart; `layers` names others, input first.
    A tied weight learns with the earliest of its layers. With `weight_decay` each group is split as by decay_groups().
    """
    if not 0 < decay <= 1:
        raise ValueError(f"layerwise_lr(decay=...) must be above 0 and at most 1, not {decay}.")
    exempt = _exempt(model, [])
    owned = _by_layer(model, named(layers, model))
    if not any(parameters for _, parameters in owned):
        raise ValueError("layerwise_lr() found no trainable parameter in the model: are they all frozen?")
    groups: list[Group] = []
    for index, (name, parameters) in enumerate(owned):
        common = {"lr": lr * decay ** (len(owned) - 1 - index), "name": name}
        if weight_decay is None:
            groups.append({"params": parameters, **common})
            continue
        kept, free = [p for p in parameters if p not in exempt], [p for p in parameters if p in exempt]
        groups += [
            {"params": kept, "weight_decay": weight_decay, **common},
            {"params": free, "weight_decay": 0.0, **common},
        ]
    return [group for group in groups if group["params"]]


def _exempt(model: nn.Module, words: list[str]) -> set[Tensor]:
    """Parameters without decay, under any of their names."""
    by_name = {
        parameter
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.dim() < 2 or any(word in name for word in words)
    }
    in_norms = {p for module in model.modules() if is_norm(module) for p in module.parameters(recurse=False)}
    return by_name | in_norms


def _by_layer(model: nn.Module, layers: list[tuple[str, nn.Module]]) -> list[tuple[str, list[Tensor]]]:
    """The trainable parameters of each layer, each once; what is in no layer (a class token) goes with the first."""
    seen: set[Tensor] = set()
    found: list[tuple[str, list[Tensor]]] = []
    inside = {parameter for _, layer in layers for parameter in layer.parameters()}
    outside = [parameter for parameter in model.parameters() if parameter not in inside]
    for index, (name, layer) in enumerate(layers):
        own = [p for p in [*(outside if index == 0 else ()), *layer.parameters()] if p.requires_grad and p not in seen]
        seen.update(own)
        found.append((name, [*dict.fromkeys(own)]))
    return found
