"""What reading a script collects besides its events."""

from __future__ import annotations

import ast

import msgspec

from unstuck.events import Place
from unstuck.source.reader.scope import SourceFile
from unstuck.source.trace import Block, Happened, Loop
from unstuck.source.values import Group, Instance, Value


class OptimizerMade(msgspec.Struct, eq=False):
    """An optimizer was built over `parameters`, at `time` on the reader's clock."""

    optimizer: Instance
    parameters: Value
    place: Place
    time: int


class SchedulerMade(msgspec.Struct, eq=False):
    """A learning-rate scheduler was built for `optimizer`; `node` is the call."""

    scheduler: Instance
    optimizer: Value
    place: Place
    node: ast.Call
    time: int


class Called(msgspec.Struct, eq=False):
    """One call that was read, whatever was called."""

    name: str
    """The full path of a library function or class (`torch.nn.functional.softmax`), `.name` for a method of an object
    that is not the user's, or the dotted name as written for anything else."""
    node: ast.Call
    source: SourceFile | None
    """The file it stands in."""
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    result: Value
    receiver: Value | None
    """The object that was called, or whose method was."""
    loops: tuple[Loop, ...]
    """The loops around it, outermost first, also those around the functions that led here."""
    discarded: bool
    """It stands as a statement of its own: nobody looks at the result."""
    recording: bool
    """Gradients are recorded here, as far as is known."""
    function: str
    """The function it stands in."""
    owner: Instance | None
    """The object whose method it stands in."""
    time: int

    @property
    def last(self) -> str:
        """The name after the last dot."""
        return self.name.rpartition(".")[2]

    @property
    def place(self) -> Place:
        """Where it stands. Computed when asked for: most calls never are."""
        assert self.source is not None
        return self.source.place(self.node, self.function)


class AttributeSet(msgspec.Struct, eq=False):
    """`owner.name = value`."""

    owner: Value
    name: str
    value: Value
    place: Place
    node: ast.Attribute
    time: int


class Kept(msgspec.Struct, eq=False):
    """`name += value` or `name = name + value` in a loop, where the value is a tensor; `result` is the new sum."""

    name: str
    value: Value
    result: Value
    place: Place
    node: ast.AugAssign | ast.Assign
    loops: tuple[Loop, ...]
    recording: bool


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
    reached: int = 0
    """How much of the trace running the file leads to; the rest are functions that it only defines."""
    losses: list[Happened] = msgspec.field(default_factory=list)
    backwards: list[Happened] = msgspec.field(default_factory=list)
    calls: list[Called] = msgspec.field(default_factory=list)
    optimizers: list[OptimizerMade] = msgspec.field(default_factory=list)
    schedulers: list[SchedulerMade] = msgspec.field(default_factory=list)
    attributes: list[AttributeSet] = msgspec.field(default_factory=list)
    kept: list[Kept] = msgspec.field(default_factory=list)
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
