"""Reading a model as a row of layers, from its input to its output."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),
)
"""Layers that normalise; their gains and shifts are not weights."""


def is_norm(module: nn.Module) -> bool:
    """Whether a layer normalises; other libraries' norm layers are known by their name."""
    return isinstance(module, NORMS) or "norm" in type(module).__name__.lower()


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children of a model in order, with lists of blocks taken apart and wrappers around everything taken off."""
    children = [(name, child) for name, child in model.named_children() if [*child.parameters()]]
    if len(children) == 1 and not [*model.parameters(recurse=False)]:
        prefix, only = children[0]
        inner = [(f"{prefix}.{name}", layer) for name, layer in layers_of(only)]
        return inner or children
    found = []
    for name, child in children:
        if isinstance(child, nn.ModuleList | nn.Sequential):
            found += [(f"{name}.{inner}", layer) for inner, layer in child.named_children() if [*layer.parameters()]]
        else:
            found.append((name, child))
    return found


def named(layers: Sequence[nn.Module] | None, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers the user gave, or those the model shows."""
    if layers is None:
        return layers_of(model) or [("", model)]
    names = {module: name for name, module in model.named_modules()}
    return [(names.get(layer, str(index)), layer) for index, layer in enumerate(layers)]
