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
    """One call that was read."""

    name: str
    """The full path of a library function or class (`torch.nn.functional.softmax`), `.name` for a method of an object
    that is not the user's, or the dotted name as written for anything else."""
    node: ast.Call
    source: SourceFile | None
    """The file it is in."""
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    result: Value
    receiver: Value | None
    """The object that was called, or whose method was called."""
    loops: tuple[Loop, ...]
    """The loops around it, outermost first, including those around the calls that led here."""
    discarded: bool
    """It is a statement of its own: the result is not used."""
    recording: bool
    """Gradients are recorded here, as far as we know."""
    function: str
    """The function it is in."""
    owner: Instance | None
    """The object whose method it is in."""
    time: int

    @property
    def last(self) -> str:
        """The name after the last dot."""
        return self.name.rpartition(".")[2]

    @property
    def place(self) -> Place:
        """Where it is. Computed on demand: most calls never need it."""
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


class RunningSum(msgspec.Struct, eq=False):
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
    """Everything that reading a script found, in order."""

    trace: Block = msgspec.field(default_factory=list)
    reached: int = 0
    """How many nodes of the trace run when the file runs; the rest come from functions that nothing calls."""
    losses: list[Happened] = msgspec.field(default_factory=list)
    backwards: list[Happened] = msgspec.field(default_factory=list)
    calls: list[Called] = msgspec.field(default_factory=list)
    optimizers: list[OptimizerMade] = msgspec.field(default_factory=list)
    schedulers: list[SchedulerMade] = msgspec.field(default_factory=list)
    attributes: list[AttributeSet] = msgspec.field(default_factory=list)
    running_sums: list[RunningSum] = msgspec.field(default_factory=list)
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
    returned: list[Value] = msgspec.field(default_factory=list)
    """What functions return."""
    escaped: set[int] = msgspec.field(default_factory=set)
    """ids of objects given to code that could not be read."""
