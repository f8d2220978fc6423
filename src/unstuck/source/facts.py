"""What reading a script collects besides its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from unstuck.events import Place
from unstuck.source.trace import Block, Happened
from unstuck.source.values import Group, Instance, Value


@dataclass(slots=True, eq=False)
class OptimizerMade:
    """An optimizer was built over `parameters`, at `time` on the reader's clock."""

    optimizer: Instance
    parameters: Value
    place: Place
    time: int


@dataclass(slots=True, eq=False)
class ChildReplaced:
    """`owner.name = child` for a module that existed before."""

    owner: Instance
    name: str
    child: Value
    place: Place
    time: int


@dataclass(slots=True, eq=False)
class Frozen:
    """`requires_grad` was set on all parameters of `owner` (unless `partly`)."""

    owner: Value
    trainable: bool
    partly: bool
    place: Place
    time: int


@dataclass(slots=True, eq=False)
class Facts:
    """Everything one reading of a script found out, in the order it came up."""

    trace: Block = field(default_factory=list)
    losses: list[Happened] = field(default_factory=list)
    backwards: list[Happened] = field(default_factory=list)
    optimizers: list[OptimizerMade] = field(default_factory=list)
    groups_added: list[tuple[Instance, int]] = field(default_factory=list)
    replaced: list[ChildReplaced] = field(default_factory=list)
    frozen: list[Frozen] = field(default_factory=list)
    loaded: set[int] = field(default_factory=set)
    """ids of modules whose weights came from a file."""
    modules: list[Instance] = field(default_factory=list)
    """Objects of the user's module classes."""
    plain_lists: list[tuple[Instance, str, Group]] = field(default_factory=list)
    made_in_forward: list[tuple[Instance, Place]] = field(default_factory=list)
    called: dict[int, list[Place]] = field(default_factory=dict)
    """Where library modules were called, by their id."""
    escaped: set[int] = field(default_factory=set)
    """ids of objects given to code that could not be read."""
