"""The order of events in a loop: what comes before what, and which parameters an event concerns.

A sequence is one path through a loop of a script, or the events of a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from unstuck.events import Backward, Clip, Event, OptimizerSeen, OptimizerStep, Place, StepSkipped, ZeroGrad
from unstuck.lazy import pattern
from unstuck.source import Script
from unstuck.source.facts import Called
from unstuck.source.paths import paths
from unstuck.source.reader.knowledge import is_module, is_optimizer
from unstuck.source.trace import (
    GRADIENTS,
    Ability,
    Happened,
    Hidden,
    Inlined,
    IterationEnd,
    Loop,
    Path,
    PathItem,
    events_in,
)
from unstuck.source.values import (
    Group,
    Instance,
    Param,
    Parameters,
    Tensor,
    UserFunction,
    Value,
    alternatives,
    members,
    root,
)

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
    """All paths through each training loop, with the calls on them that could not be read.

    Skips loops over experiments, which build a new optimizer in each iteration.
    """
    for loop in script.training_loops:
        ways = paths(loop)
        if ways and not any(_begins_training(item) for way in ways for item in way):
            yield ways


def readable_functions(script: Script) -> Iterator[list[Path]]:
    """All paths through two calls of each function that runs a backward outside any loop of the script.

    Something elsewhere may call it for every batch, and may do more between two calls. Skips functions that build an
    optimizer, which train only once.
    """
    for function in step_functions(script):
        ways = paths(function)
        if ways and not any(_begins_training(item) for way in ways for item in way):
            yield ways


def _begins_training(item: PathItem) -> bool:
    return isinstance(item, Happened) and isinstance(item.event, OptimizerSeen)


def could(script: Script, hidden: Hidden, ability: Ability, subject: Value | None) -> bool:
    """Could a call that was not read do this to an optimizer, a model or its gradients? True unless known not to."""
    if not hidden.can & ability:
        return False
    own, escaped = owners(subject), script.facts.escaped
    # Code reaches an object of this script only if it was given it, now or before.
    known = isinstance(subject, Instance) and bool(own) and not escaped & {id(subject), *own}
    if not hidden.subjects:
        return not known
    return any(_could_be(given, subject, own, known) for given in hidden.subjects)


def _could_be(given: Value, subject: Value | None, own: set[int], known: bool) -> bool:
    if given is subject or isinstance(given, Tensor | UserFunction):
        return True
    theirs = owners(given)
    return bool(theirs & own) if theirs and own else not known


def step_functions(script: Script) -> Iterator[Loop]:
    """Functions that run a backward outside any loop of the script, as loops of which one iteration is known.

    Something calls them for every batch; one call from backward to step can be judged without its caller.
    """
    for node in script.facts.trace:
        if isinstance(node, Inlined):
            backwards = [item for item in events_in(node.body, nested_loops=False) if isinstance(item.event, Backward)]
            if backwards and backwards[0].event.place is not None:
                yield Loop(script.tree, backwards[0].event.place, [node])


def gradient_events(path: Path) -> list[Happened]:
    """The events of a path that make, change, use or clear gradients."""
    return [item for item in path if isinstance(item, Happened) and isinstance(item.event, GRADIENT_EVENTS)]


def gradient_items(path: Path) -> list[tuple[Happened | Hidden, int]]:
    """The events of a path that concern gradients and the calls that may have caused some, with their iterations."""
    found: list[tuple[Happened | Hidden, int]] = []
    iteration = 0
    for item in path:
        if isinstance(item, IterationEnd):
            iteration += 1
        elif isinstance(item, Hidden):
            found += [(item, iteration)] if item.can & GRADIENTS else []
        elif isinstance(item.event, GRADIENT_EVENTS):
            found.append((item, iteration))
    return found


def hidden_on(ways: Iterable[Path], ability: Ability) -> list[Hidden]:
    """The calls on any of these paths that could do this, each once."""
    calls = (item for way in ways for item in way if isinstance(item, Hidden) and item.can & ability)
    return list({id(call): call for call in calls}.values())


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
