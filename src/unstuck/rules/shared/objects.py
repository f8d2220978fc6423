"""Live objects, as a probe or a record shows them: which module owns a parameter, and in which group it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from unstuck.events import Event, GroupFact, ModelSeen, ModuleFact, OptimizerSeen, ParameterFact, Place, Setup

NAMES_SHOWN = 4
NORMALISING = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")


AnyEvent = TypeVar("AnyEvent", bound=Event)


def by_place(events: Iterable[AnyEvent]) -> dict[Place | None, list[AnyEvent]]:
    """Events of one line together, in the order in which they came."""
    found: dict[Place | None, list[AnyEvent]] = {}
    for event in events:
        found.setdefault(event.place, []).append(event)
    return found


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def counted(count: int, thing: str) -> str:
    """A number with its noun, such as `1 layer` or `3 layers`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def by_group(optimizer: OptimizerSeen) -> Iterator[tuple[GroupFact, tuple[ParameterFact, ...]]]:
    """Each parameter group with its parameters; empty for an optimizer recorded without them."""
    position = 0
    for group in optimizer.groups:
        members = optimizer.parameters[position : position + group.size]
        position += group.size
        if len(members) == group.size:
            yield group, members


def owners(setup: Setup) -> dict[int, ModuleFact]:
    """The module that owns each parameter directly, by the parameter's key."""
    found: dict[int, ModuleFact] = {}
    for model in setup.models:
        modules = {module.name: module for module in model.modules}
        for fact in model.parameters:
            module = modules.get(fact.name.rpartition(".")[0])
            if module is not None:
                found[fact.key] = module
    return found


def parameters_in(model: ModelSeen, module: str) -> list[ParameterFact]:
    """The parameters of a module and of all inside it; the model itself is named by an empty string."""
    return [fact for fact in model.parameters if not module or fact.name.startswith(f"{module}.")]


def children(model: ModelSeen, module: str) -> list[ModuleFact]:
    """The modules directly inside another, in the order in which they were registered."""
    return [m for m in model.modules if m.name and m.name.rpartition(".")[0] == module]


def is_norm(kind: str) -> bool:
    """Is it a normalisation layer, by its class?"""
    return any(word in kind for word in NORMALISING)
