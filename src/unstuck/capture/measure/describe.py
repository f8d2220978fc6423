"""What is recorded of modules and optimizers: the few numbers rules ask for, read without touching a device."""

from __future__ import annotations

import itertools
import math
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.tensors import is_plain, may_measure, number, reading
from unstuck.capture.places import is_users_class
from unstuck.capture.torch_hooks.internals import NormBase
from unstuck.events import GroupFact, ModuleFact

_NUMBERS = frozenset(
    "p dropout num_layers momentum track_running_stats in_features out_features in_channels out_channels "
    "num_features num_embeddings embedding_dim padding_idx".split()
)
_STATES_LOOKED_AT = 64
_WORTH_COUNTING = 64 * 2**20
_SMALLEST_TEST = 64
"""Fewer weights than this say too little about how they were drawn."""


def module_fact(name: str, module: nn.Module, loaded: bool = False) -> ModuleFact:
    """What is recorded of a module inside a model; `loaded`: a checkpoint gave its own parameters their values."""
    numbers = _numbers(module)
    if loaded:
        numbers["pretrained"] = 1.0
    own = is_users_class(type(module))
    numbers |= _adapter_targets(module)
    return ModuleFact(name, type(module).__name__, module.training, numbers, own, _repeated(module))


def _repeated(module: nn.Module) -> tuple[str, ...]:
    """The children of a container that are one module under several names, as `[layer] * 3` makes them."""
    if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        return ()
    names: dict[int, list[str]] = {}
    for name, child in module._modules.items():
        if child is not None and next(child.parameters(), None) is not None:
            names.setdefault(id(child), []).append(name)
    repeated = [tuple(same) for same in names.values() if len(same) > 1]
    return max(repeated, key=lambda same: len(same)) if repeated else ()


def _adapter_targets(module: nn.Module) -> dict[str, float]:
    """Of a model that PEFT has prepared: how many layers each of the names asked for has matched."""
    configured = vars(module).get("peft_config")
    if not isinstance(configured, dict):
        return {}
    names = [targets for config in configured.values() for targets in _names(getattr(config, "target_modules", None))]
    adapted = [name for name, inner in module.named_modules() if hasattr(inner, "lora_A")] if names else []
    return {f"target {name}": float(sum(f".{path}".endswith(f".{name}") for path in adapted)) for name in names}


def _names(targets: object) -> list[str]:
    return [name for name in targets if isinstance(name, str)] if isinstance(targets, list | set | tuple) else []


def _numbers(module: nn.Module) -> dict[str, float]:
    found = {
        key: float(value)
        for key, value in vars(module).items()
        if isinstance(value, bool | int | float) and (key in _NUMBERS or (value is False and _is_switch(key)))
    }
    pretrained = _is_pretrained(module)
    if pretrained is not None:
        found["pretrained"] = float(pretrained)
    return found


def _is_switch(name: str) -> bool:
    """An attribute that somebody set in place of `requires_grad`, or misspelt."""
    return name.startswith("requ") and "grad" in name


def heeds_mode(module: nn.Module) -> bool:
    """Does it do something else in training than in evaluation?"""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, NormBase):
        return bool(module.track_running_stats)
    if isinstance(module, nn.RNNBase):
        return module.num_layers > 1 and module.dropout > 0
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _is_pretrained(module: nn.Module) -> bool | None:
    """True of a normalisation that has left its initial values, False of a Linear whose weights are still as torch
    draws them; None where neither can be said."""
    # Of a scripted module these are no dict.
    weight = dict(module._parameters.items()).get("weight")
    if weight is None or not is_plain(weight) or weight.device.type != "cpu" or not may_measure():
        return None
    with reading():
        if isinstance(module, (NormBase, nn.LayerNorm, nn.GroupNorm)):
            return bool((weight != weight.flatten()[0]).any())
        if type(module) is nn.Linear and weight.numel() >= _SMALLEST_TEST:
            return False if _is_as_drawn(weight) or _is_zero(module._parameters.get("bias")) else None
    return None


def _is_zero(bias: Tensor | None) -> bool:
    """Some libraries begin with biases of 0; training never leaves all of them there."""
    return bias is not None and bias.numel() > 1 and not bool(bias.any())


def _is_as_drawn(weight: Tensor) -> bool:
    """torch draws a Linear's weights evenly from [-b, b] with b = 1 / sqrt(in_features)."""
    bound = math.sqrt(1 / weight.shape[1])
    largest, spread = float(weight.abs().max()), float(weight.std())
    slack = 4 / math.sqrt(weight.numel())
    fills_its_range = bound * (1 - slack) <= largest <= bound * 1.0001
    return fills_its_range and abs(spread * math.sqrt(3) / bound - 1) < min(slack, 0.1)


def group_facts(optimizer: Optimizer) -> tuple[GroupFact, ...]:
    """What is recorded of an optimizer's parameter groups."""
    return tuple(_group_fact(group) for group in optimizer.param_groups)


def _group_fact(group: dict[str, Any]) -> GroupFact:
    temporaries = _temporaries(group)
    return GroupFact(
        size=len(group["params"]),
        rate=number(group.get("lr")),
        weight_decay=number(group.get("weight_decay")) or 0.0,
        momentum=number(group.get("momentum")) or 0.0,
        eps=number(group.get("eps")),
        foreach=_switch(group.get("foreach")),
        fused=_switch(group.get("fused")),
        decoupled=_switch(group.get("decoupled_weight_decay")),
        temporaries=temporaries,
        free=_free_bytes(group["params"][0].device) if temporaries else None,
    )


def _temporaries(group: dict[str, Any]) -> int | None:
    """About the size of its parameters, if the group uses foreach, as groups on a GPU do by default."""
    trained = [parameter for parameter in group["params"] if parameter.requires_grad]
    by_default = "foreach" in group and group["foreach"] is None and not group.get("fused")
    on_gpu = bool(trained) and all(parameter.is_cuda for parameter in trained)
    if not (group.get("foreach") is True or (by_default and on_gpu)):
        return None
    needed = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    return needed if needed >= _WORTH_COUNTING else None


def _free_bytes(device: torch.device) -> int | None:
    """What can still be allocated there, counting what torch's allocator keeps in reserve."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if device.type == "cpu" else None
    except (AttributeError, ValueError, OSError):
        return None


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def state_dtypes(optimizer: Optimizer) -> tuple[str, ...]:
    """Of the tensors it keeps for each parameter, not counting the number of steps."""
    states = list(itertools.islice(optimizer.state.values(), _STATES_LOOKED_AT))
    kept = (value for state in states if isinstance(state, dict) for key, value in state.items() if key != "step")
    names = {str(value.dtype).removeprefix("torch.") for value in kept if isinstance(value, Tensor)}
    return tuple(sorted(names))


def too_small_steps(optimizer: Optimizer) -> tuple[float | None, ...]:
    """Per group: the share of its half-precision numbers that stay as they are when the learning rate is added or
    taken away; None without any such numbers. Reads every one of them."""
    return tuple(_too_small(group) for group in optimizer.param_groups)


def _too_small(group: dict[str, Any]) -> float | None:
    rate = number(group.get("lr"))
    halves = [p for p in group["params"] if is_plain(p) and p.dtype in (torch.float16, torch.bfloat16)]
    total = sum(parameter.numel() for parameter in halves if parameter.requires_grad)
    if rate is None or not total:
        return None
    with reading():
        stuck = sum(int(((p + rate == p) & (p - rate == p)).sum()) for p in halves if p.requires_grad)
    return float(stuck / total)
