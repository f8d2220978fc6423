"""Weights and biases to start from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn

from unstuck.helpers.layers import is_norm

Weighted: TypeAlias = nn.Linear | nn.modules.conv._ConvNd
RELUS = ("relu", "relu6", "leakyrelu", "prelu", "elu", "celu", "selu", "gelu", "silu", "mish", "hardswish", "softplus")
SQUASHING = {"tanh": 5 / 3, "sigmoid": 1.0, "hardtanh": 5 / 3, "softsign": 1.0, "logsigmoid": 1.0}
PASSED = (
    "dropout flatten identity pool pad view reshape permute transpose contiguous unflatten squeeze unsqueeze getitem"
)


@dataclass(frozen=True)
class Suggestion:
    """How one layer should begin, because of what follows it."""

    layer: str
    method: str
    """"He" before rectifiers, "Xavier" before everything else."""
    follows: str
    """The activation after the layer, or "output"."""
    std: float
    """The standard deviation the weights should have."""
    std_now: float
    """The one they have."""


def suggest_init(model: nn.Module) -> list[Suggestion]:
    """He or Xavier for every linear and convolutional layer, by the activation that follows; nothing is changed.

    What follows is read from the forward pass where it can be traced, and from the order of the modules elsewhere.
    """
    return [_suggestion(name, layer, after) for name, layer, after in _with_followers(model)]


def init_weights(model: nn.Module) -> list[Suggestion]:
    """Draw the weights as suggest_init() says and set the biases to 0; what was done is returned."""
    suggestions = suggest_init(model)
    with torch.no_grad():
        for suggestion in suggestions:
            layer = model.get_submodule(suggestion.layer)
            assert isinstance(layer.weight, Tensor)
            layer.weight.normal_(0.0, suggestion.std)
            if isinstance(layer.bias, Tensor):
                layer.bias.zero_()
    return suggestions


def init_final_bias(
    model: nn.Module, targets: Tensor, *, layer: nn.Module | None = None, ignore_index: int = -100
) -> Tensor:
    """Set the bias of the last layer to what is known before training: class frequencies, or the mean of the target.

    Targets are read as their loss reads them: whole numbers are classes, rows that sum to 1 are their probabilities,
    columns of 0 and 1 are independent labels, and anything else is a regression. The bias is returned.
    """
    final = layer or _last_layer(model)
    bias = getattr(final, "bias", None)
    if not isinstance(bias, Tensor):
        raise ValueError("The last layer has no bias to set: build it with bias=True, or name another with layer=...")
    whole = not targets.is_floating_point() and targets.dtype != torch.bool
    value = _prior(targets[targets != ignore_index] if whole else targets, len(bias), whole)
    with torch.no_grad():
        bias.copy_(value)
    return bias.detach()


def _prior(targets: Tensor, outputs: int, whole: bool) -> Tensor:
    if targets.numel() == 0:
        raise ValueError("init_final_bias() was given no targets.")
    if targets.is_floating_point() and not bool(targets.isfinite().all()):
        raise ValueError("init_final_bias() was given targets that are NaN or infinite.")
    if whole and outputs > 1:
        return _class_prior(targets, outputs)
    columns = targets.reshape(-1, outputs).double() if targets.numel() % outputs == 0 else None
    if columns is None or (outputs > 1 and targets.shape[-1] != outputs):
        raise ValueError(f"Targets of shape {[*targets.shape]} do not fit a last layer with {outputs} outputs.")
    if (
        outputs > 1
        and bool((columns >= 0).all())
        and bool(torch.isclose(columns.sum(1), torch.ones_like(columns[:, 0])).all())
    ):
        return ((columns.sum(0) + 0.5) / (len(columns) + 0.5 * outputs)).log()
    if bool(
        ((columns == 0) | (columns == 1)).all()
    ):  # half an example of each kind keeps the logit finite when all labels are the same
        positives = columns.sum(0)
        return ((positives + 0.5) / (len(columns) - positives + 0.5)).log()
    return columns.mean(0)


def _class_prior(targets: Tensor, classes: int) -> Tensor:
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"Labels from {low} to {high} do not fit a last layer with {classes} outputs: see remap_labels()."
        )
    counts = (
        torch.bincount(targets, minlength=classes).double() + 0.5
    )  # a class without examples is rare, not impossible
    return (counts / counts.sum()).log()


def _last_layer(model: nn.Module) -> nn.Module:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    if not layers:
        raise ValueError("init_final_bias() found no linear or convolutional layer: name one with layer=...")
    return layers[-1]


def _suggestion(name: str, layer: Weighted, after: str) -> Suggestion:
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
    if after in RELUS:
        gain = nn.init.calculate_gain("leaky_relu") if after == "leakyrelu" else math.sqrt(2)
        method, std = "He", gain / math.sqrt(fan_in)
    else:
        method, std = "Xavier", SQUASHING.get(after, 1.0) * math.sqrt(2 / (fan_in + fan_out))
    now = float(layer.weight.detach().double().std(correction=0))
    return Suggestion(name, method, after, std, now)


def _with_followers(model: nn.Module) -> Iterator[tuple[str, Weighted, str]]:
    followers = _traced(model)
    if followers is None:
        followers = _registered(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and isinstance(module.weight, nn.Parameter):
            yield name, module, followers.get(name, "output")


def _registered(model: nn.Module) -> dict[str, str]:
    """What follows each layer if modules are used in the order in which they were made."""
    leaves = [(name, module) for name, module in model.named_modules() if not [*module.children()]]
    found = {}
    for index, (name, _) in enumerate(leaves):
        following = (kind for _, module in leaves[index + 1 :] if (kind := _kind(module)) is not None)
        found[name] = next(following, "output")
    return found


def _traced(model: nn.Module) -> dict[str, str] | None:
    """What follows each layer in the forward pass, functions included; None if it cannot be traced."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # the model's own forward, on stand-ins for tensors: it may raise anything
        return None
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            found.setdefault(str(node.target), _first_activation(node, model))
    return found


def _first_activation(node: fx.Node, model: nn.Module) -> str:
    waiting, seen = [*node.users], set()
    while waiting:
        user = waiting.pop(0)
        if user in seen:
            continue
        seen.add(user)
        kind = _node_kind(user, model)
        if kind is not None:
            return kind
        waiting += [*user.users]
    return "output"


def _node_kind(node: fx.Node, model: nn.Module) -> str | None:
    """The activation a node is; None if a signal passes through it as it is."""
    if node.op == "call_module":
        return _kind(model.get_submodule(str(node.target)))
    if node.op == "output":
        return "output"
    name = str(getattr(node.target, "__name__", node.target)).rstrip("_").replace("_", "")
    return name if name in RELUS or name in SQUASHING else None


def _kind(module: Any) -> str | None:
    name = type(module).__name__.lower()
    if name in RELUS or name in SQUASHING:
        return name
    passes = is_norm(module) or any(word in name for word in PASSED.split())
    return None if passes else "linear"
