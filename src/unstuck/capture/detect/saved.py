"""What autograd kept for the backward, read without running any hook of the user's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from unstuck.capture.torch_hooks.internals import SavedTensor
from unstuck.capture.torch_hooks.patches import Patches

_knows_hooks = hasattr(SavedTensor, "unpack_hook") and hasattr(SavedTensor, "data")
"""Can a saved tensor be asked for its hook, and for its value without that? Not in torch 2.4."""
_hooks_were_used = False
"""Where that cannot be asked: has any part of this process hooked saved tensors?"""


def saved(node: Any, name: str) -> Tensor | None:
    """What a node of the graph kept under this name, also whole numbers; None if it cannot be had."""
    raw: Any = getattr(node, f"_raw_saved_{name}", None)
    if not isinstance(raw, SavedTensor):  # a function of the user's own keeps a tuple
        return None
    value: Any = None
    try:
        # `_saved_x` would run unpack hooks of the user's (a checkpoint recomputes there); `.data` does not.
        if _knows_hooks:
            value = raw.data if raw.unpack_hook is None else None
        elif not _hooks_were_used:
            value = getattr(node, f"_saved_{name}")
    except RuntimeError:  # freed by a backward
        return None
    readable = isinstance(value, Tensor) and type(value) in (Tensor, torch.nn.Parameter) and not value.is_meta
    return value if readable and value.layout is torch.strided else None


def watch_hooks(patches: Patches) -> None:
    """Notice hooks on saved tensors, where torch cannot be asked for them."""
    if not _knows_hooks:
        patches.around(saved_tensors_hooks, "__enter__", _entered, lambda token, result, error: None)


def _entered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _hooks_were_used
    _hooks_were_used = True
