"""What reading a script collects besides its events."""

from __future__ import annotations

import msgspec

from unstuck.events import Place
from unstuck.source.trace import Block, Happened
from unstuck.source.values import Group, Instance, Value


class OptimizerMade(msgspec.Struct, eq=False):
    """An optimizer was built over `parameters`, at `time` on the reader's clock."""

    optimizer: Instance
    parameters: Value
    place: Place
    time: int


class ChildReplaced(msgspec.Struct, eq=False):
    """`owner.name = child` for a module that existed before."""

    owner: Instance
    name: str
    child: Value
    place: Place
    time: int


class Frozen(msgspec.Struct, eq=False):
    """`requires_grad` was set on all parameters of `owner` (unless `partly`)."""

    owner: Value
    trainable: bool
    partly: bool
    place: Place
    time: int


class Facts(msgspec.Struct, eq=False):
    """Everything one reading of a script found out, in the order it came up."""

    trace: Block = msgspec.field(default_factory=list)
    losses: list[Happened] = msgspec.field(default_factory=list)
    backwards: list[Happened] = msgspec.field(default_factory=list)
    optimizers: list[OptimizerMade] = msgspec.field(default_factory=list)
    groups_added: list[tuple[Instance, int]] = msgspec.field(default_factory=list)
    replaced: list[ChildReplaced] = msgspec.field(default_factory=list)
    frozen: list[Frozen] = msgspec.field(default_factory=list)
    loaded: set[int] = msgspec.field(default_factory=set)
    """ids of modules whose weights came from a file."""
    modules: list[Instance] = msgspec.field(default_factory=list)
    """Objects of the user's module classes."""
    plain_lists: list[tuple[Instance, str, Group]] = msgspec.field(default_factory=list)
    made_in_forward: list[tuple[Instance, Place]] = msgspec.field(default_factory=list)
    called: dict[int, list[Place]] = msgspec.field(default_factory=dict)
    """Where library modules were called, by their id."""
    escaped: set[int] = msgspec.field(default_factory=set)
    """ids of objects given to code that could not be read."""
