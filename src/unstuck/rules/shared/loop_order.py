"""The order of events in a loop: what comes before what, and which parameters an event concerns.

A sequence is one path through a loop of a script, or the events of a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Backward, Clip, Event, OptimizerSeen, OptimizerStep, Place, StepSkipped, ZeroGrad
from unstuck.lazy import pattern
from unstuck.source.reader.knowledge import is_module, is_optimizer
from unstuck.source.trace import Happened, Hidden, Inlined, IterationEnd, Loop, Path, events_in, paths
from unstuck.source.values import Group, Instance, Param, Parameters, Tensor, Value, alternatives, members, root

if TYPE_CHECKING:
    from unstuck.source import Script
    from unstuck.source.facts import Called

GRADIENT_EVENTS = (Backward, ZeroGrad, Clip, OptimizerStep, StepSkipped)
FRAMEWORKS = pattern(
    r"^\s*(from|import)\s[^\n#]*\b(accelerate|lightning|pytorch_lightning|lightning_fabric|deepspeed|ignite|composer|"
    r"colossalai|catalyst|fastai)\b|\bLightningModule\b|^\s*from transformers[\w.]* import\s[^\n(]*(\([^)]*)?Trainer\b|"
    r"(?<!torch\.)\baccelerator\.(prepare|backward|accumulate|clip_grad)|\bfabric\.(setup|backward)",
    re.M,
)
"""Imports of libraries that wrap models, loaders and schedulers, and calls of a wrapper that came as an argument."""


def uses_framework(script: Script) -> bool:
    """Does a library run part of the training out of sight, such as splitting data or stepping schedulers?"""
    return FRAMEWORKS.search(script.text) is not None


def readable_loops(script: Script) -> Iterator[list[Path]]:
    """All paths through each training loop that can be read completely.

    Skips loops with calls that could hide a step or a zero_grad, and loops over experiments, which build a new
    optimizer in each iteration.
    """
    for loop in script.training_loops:
        ways = paths(loop)
        if ways and not any(_spoils(item) for way in ways for item in way):
            yield ways


def _spoils(item: Happened | Hidden | IterationEnd) -> bool:
    return isinstance(item, Hidden) or (isinstance(item, Happened) and isinstance(item.event, OptimizerSeen))


def step_functions(script: Script) -> Iterator[Loop]:
    """Functions that run a backward outside any loop of the script, as loops of which one iteration is known.

    Something calls them for every batch; one call from backward to step can be judged without its caller.
    """
    for node in script.facts.trace:
        if isinstance(node, Inlined):
            backwards = [item for item in events_in(node.body, nested_loops=False) if isinstance(item.event, Backward)]
            if backwards and backwards[0].event.place is not None:
                yield Loop(script.tree, backwards[0].event.place, node.body)


def gradient_events(path: Path) -> list[Happened]:
    """The events of a path that make, change, use or clear gradients."""
    return [item for item in path if isinstance(item, Happened) and isinstance(item.event, GRADIENT_EVENTS)]


def iteration_numbers(path: Path) -> list[int]:
    """For each gradient event of a path, the iteration it happens in."""
    numbers: list[int] = []
    iteration = 0
    for item in path:
        if isinstance(item, IterationEnd):
            iteration += 1
        elif isinstance(item, Happened) and isinstance(item.event, GRADIENT_EVENTS):
            numbers.append(iteration)
    return numbers


class Opinion(msgspec.Struct):
    """What one path says about the places on it: guilty with the reason, innocent, or (if in neither) nothing."""

    guilty: dict[Place, str] = msgspec.field(default_factory=dict)
    innocent: set[Place] = msgspec.field(default_factory=set)


def always(ways: Sequence[Path], judge: Callable[[Path], Opinion]) -> dict[Place, str]:
    """Places that some path finds guilty and none innocent, with what is wrong there.

    A line that is right in one configuration is not reported because it is wrong in another.
    """
    opinions = [judge(way) for way in ways]
    innocent = {place for opinion in opinions for place in opinion.innocent}
    accused = {place: reason for opinion in opinions for place, reason in opinion.guilty.items()}
    return {place: reason for place, reason in accused.items() if place not in innocent}


def concerns(clearing: Happened, step: Happened) -> bool:
    """Does clearing or clipping affect the gradients of this optimizer? True unless known not to."""
    event = clearing.event
    if isinstance(event, ZeroGrad) and event.optimizer is not None and isinstance(step.event, OptimizerStep):
        return event.optimizer == step.event.optimizer
    one, other = owners(clearing.subject), owners(step.subject)
    return not one or not other or bool(one & other)


def wrapped_for_ranks(script: Script) -> list[Called]:
    """Where a model is wrapped by DistributedDataParallel."""
    names = ("DistributedDataParallel", ".DDP")
    return [call for call in script.facts.calls if call.name.endswith(names) and "torch" in call.name]


def owners(value: Value | None) -> set[int]:
    """ids of the outermost modules whose parameters `value` holds; empty when unknown."""
    found: set[int] = set()
    for option in alternatives(value) if value is not None else ():
        if isinstance(option, Instance) and (option.args or option.kwargs) and is_optimizer(option):
            given = option.args[0] if option.args else option.kwargs.get("params")
            found |= owners(given)
        elif is_module(option) and isinstance(option, Instance):
            found.add(id(root(option)))
        elif isinstance(option, Parameters | Param):
            found |= owners(option.owner)
        elif isinstance(option, Group):
            for item in option.items:
                found |= owners(item)
    return found


def modules_behind(values: Iterable[Value]) -> list[Instance]:
    """The outermost modules that gradients of `values` flow back through."""
    found: dict[int, Instance] = {}
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        for option in members(waiting.pop()):
            if isinstance(option, Tensor) and id(option) not in seen and not option.cut:
                seen.add(id(option))
                waiting.extend(option.inputs)
                if option.module is not None:
                    top = root(option.module)
                    found[id(top)] = top
    return list(found.values())


def places(events: Iterable[Event]) -> list[Place]:
    """Where the events came from, each once."""
    return list(dict.fromkeys(event.place for event in events if event.place is not None))


def same_optimizer(one: Event, other: Event) -> bool:
    """Do a record's clearing and stepping concern the same optimizer? True unless known not to."""
    first, second = getattr(one, "optimizer", None), getattr(other, "optimizer", None)
    return first is None or second is None or first == second
