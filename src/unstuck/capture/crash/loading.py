"""A `load_state_dict` that failed: which keys there are on both sides, and what would make them meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

from torch import nn

from unstuck.events import InputFact


def loading_facts(below: Sequence[FrameType]) -> dict[str, Any]:
    """How many keys match, and the prefix or the inner dictionary that would make more of them match."""
    frame = next(frame for frame in below if frame.f_code.co_name == "load_state_dict")
    module, given = frame.f_locals.get("self"), frame.f_locals.get("state_dict")
    if not isinstance(module, nn.Module) or not isinstance(given, dict):
        return {}
    wanted, offered = _keys(module), [key for key in given if isinstance(key, str)]
    facts: dict[str, bool | int | str] = {
        "keys of the model": len(wanted),
        "keys of the checkpoint": len(offered),
        "matching keys": len(wanted.intersection(offered)),
        "prefix in the checkpoint": _prefix(offered, wanted),
        "prefix in the model": _prefix(wanted, set(offered)),
        "inner dictionary": _inner(given, wanted),
        "strict": bool(frame.f_locals.get("strict", True)),
    }
    return {
        "inputs": tuple(InputFact(name, value=value) for name, value in facts.items() if value != ""),
        "module_kind": type(module).__name__,
    }


def _keys(module: nn.Module) -> set[str]:
    """What its state consists of. `state_dict()` itself would run the hooks of the program."""
    found = {name for name, _ in nn.Module.named_parameters(module, remove_duplicate=False)}
    for place, part in nn.Module.named_modules(module, remove_duplicate=False):
        kept = part._buffers.keys() - part._non_persistent_buffers_set
        found |= {f"{place}.{name}" if place else name for name in kept if part._buffers[name] is not None}
    return found


def _prefix(keys: Iterable[str], others: set[str]) -> str:
    """What all keys begin with and the other side lacks: without it most of them match."""
    known = list(keys)
    if not known or not others:
        return ""
    first = known[0]
    for end in (index + 1 for index, letter in enumerate(first) if letter == "."):
        prefix = first[:end]
        fitting = sum(key.startswith(prefix) and key[end:] in others for key in known)
        if fitting * 2 > len(known):
            return prefix
    return ""


def _inner(given: dict[Any, Any], wanted: set[str]) -> str:
    """The entry of the checkpoint that is the state itself, as in `{"epoch": 3, "model": {...}}`."""
    for key, value in given.items():
        if isinstance(key, str) and isinstance(value, dict) and 2 * len(wanted.intersection(value)) > len(wanted):
            return key
    return ""
