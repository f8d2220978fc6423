"""Plain numbers about things: a place in the code, a parameter, a module, a tensor that passed by.

The parts that events are made of. Nothing here holds a tensor or imports torch.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A spot in the user's code. Lines count from 1, columns from 1; 0 means unknown."""

    path: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    function: str = ""
    cell: int = 0
    """The cell of a notebook, from 1, in which the lines are counted; 0 in other files."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def document(self) -> str:
        """The file, and in a notebook the cell, in which the lines are counted."""
        return f"{self.path}:cell {self.cell}" if self.cell else self.path

    @property
    def key(self) -> tuple[str, int]:
        """What two witnesses must agree on to speak of the same spot."""
        return (self.document, self.line)


class ParameterFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter tensor, identified by `key` (its identity within the process)."""

    name: str
    key: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    trainable: bool = True
    stale: bool = False
    """Frozen, and still holding a gradient from before."""

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        total = 1
        for side in self.shape:
            total *= side
        return total


class ModuleFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One module inside a model: its dotted name and class."""

    name: str
    kind: str
    training: bool = True
    numbers: dict[str, float] = msgspec.field(default_factory=dict)
    """What it was built with, as far as rules ask: p, momentum, in_features, num_features, ..."""
    own: bool = False
    """Its class is written in the program itself, not in torch or another installed package."""
    repeated: tuple[str, ...] = ()
    """Of a container: the names of children with parameters that are all one and the same module."""


class GroupFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter group of an optimizer; the groups share out its `parameters` in order."""

    size: int
    """How many tensors it holds."""
    rate: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.0
    eps: float | None = None
    foreach: bool | None = None
    fused: bool | None = None
    decoupled: bool | None = None
    """Weight decay stays out of the gradient, as in AdamW; None if the optimizer has no such switch."""
    temporaries: int | None = None
    """Bytes that `foreach` needs for a moment in every step; only of a large group that uses it."""
    free: int | None = None
    """Bytes that were free on the device of that group."""
    too_small: float | None = None
    """The share of its half-precision numbers that a step as large as the rate leaves as they are; only in `check`."""


class ClassFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whole numbers that stand for classes, counted: the labels of a batch, or the classes predicted for it."""

    counts: dict[int, int] = msgspec.field(default_factory=dict)
    """How often each class occurs, the most frequent ones first, at most 32 of them."""
    distinct: int = 0
    total: int = 0
    changes: float | None = None
    """The share of neighbours in the batch that differ; near 0 for labels that come sorted."""


class TensorFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a tensor that passed by: never its data, only numbers about it."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    requires_grad: bool = False
    made_by: str = ""
    """The autograd node behind it, seen through reshapes and casts, such as `SoftmaxBackward0`."""
    sums_to_one: bool = False
    """Every row along the class axis lies in [0, 1] and sums to 1."""
    mean: float | None = None
    spread: float | None = None
    """Standard deviation of all its values."""
    between: float | None = None
    """Standard deviation from example to example along the first axis, averaged over the other axes: near 0 when
    every example gets the same."""
    classes: ClassFact | None = None
    """Of a target of whole numbers; of scores, the classes with the highest ones."""
    axis: int | None = None
    """If a softmax made it: the axis that this ran over."""


class OperationFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation of the graph behind a loss that is worth a word, such as a logarithm near 0."""

    name: str
    """As in `log`, `clamp`, `sub`."""
    behind: tuple[str, ...] = ()
    """What made its input, and the input of that, and so on, without reshapes."""
    shape: tuple[int, ...] = ()
    """Of what it returned."""
    given: tuple[int, ...] = ()
    """Of its first input that the graph knows."""
    low: float | None = None
    high: float | None = None
    """Range of what it was given; of the denominator of a division, and of the result of an exp."""
    share: float | None = None
    """Of its elements: those beyond the limits of a clamp, or left out by the mask of a mean."""
    limit: float | None = None
    """The upper limit of a clamp."""


class TermFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One summand of a loss that is a mean or a sum over many numbers."""

    name: str
    reduction: str
    """`mean` or `sum`."""
    weight: float = 1.0
    """The product of the constants before it."""
    shape: tuple[int, ...] = ()
    """Of what it was taken over."""
    divergence: bool = False
    """It is taken over `mu**2 + exp(logvar) - logvar - 1`, however that is written."""


class GraphFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of the graph behind a loss."""

    names: tuple[str, ...] = ()
    """Of the last operations, nearest to the loss first, such as `ClampBackward1`."""
    operations: tuple[OperationFact, ...] = ()
    terms: tuple[TermFact, ...] = ()
    live_weight: tuple[int, ...] | None = None
    """The shape of a factor that a log-probability is multiplied by, if that factor comes out of a network and gets
    gradients too."""
    classes_were: tuple[tuple[int, ...], int] | None = None
    """As in `LossCall`, where the loss is written out."""


class InputFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one argument of a call was: numbers about a tensor, or the value itself if it is a plain one."""

    name: str
    shape: tuple[int, ...] | None = None
    """None if it is not a tensor."""
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    quantiles: tuple[float, ...] = ()
    """At 5, 25, 50, 75 and 95 %, of a sample of a large tensor."""
    requires_grad: bool = False
    value: bool | int | float | str | None = None
    kind: str = ""
    """The class of what has no numbers."""
    mean: float | None = None
    spread: float | None = None
    """Standard deviation. Like the mean, of the finite values."""
    broken: float | None = None
    """The share of values that are NaN or infinite."""
    ids: ClassFact | None = None
    """Of rows of whole numbers, such as words: how often each occurs."""
    column: tuple[int, float, float] | None = None
    """Of a table in which one column is a hundred times as large as the usual one: its number from 0, its root mean
    square, and that of the usual one."""
    still: dict[int, float] = msgspec.field(default_factory=dict)
    """Of a table: columns with one value for all examples of the batch, by their number from 0, at most 32."""


class DropoutFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that drops values at random although its model is in evaluation mode."""

    function: str
    """As in `dropout` or `scaled_dot_product_attention`."""
    share: float
    place: Place | None = None


class Leak(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came out changed, though only such inputs were changed as must not matter to it."""

    axis: int
    """Of the inputs along which they were changed."""
    size: int
    """Of that axis."""
    shape: tuple[int, ...]
    """Of the output that changed."""
    change: float
    """The largest change, as a multiple of the spread of the output."""
    module: str = ""
    """The innermost module whose inputs were still clean and whose output was not; empty for the model itself."""
    kind: str = ""
    batch_first: bool | None = None
    """Of that module, where it has such a switch."""
    place: Place | None = None
    """Where its `forward` is written, if by the user."""


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `check` saw when it ran the batch a few times more on the side, each time with one thing changed."""

    done: tuple[str, ...] = ()
    """Which of `examples`, `future`, `modes` and `step` could be tried; `next` if targets are the next elements."""
    between_examples: Leak | None = None
    """Outputs of some examples changed with the inputs of others, in evaluation mode."""
    from_future: Leak | None = None
    """Predictions of the next element changed with the elements after it."""
    copies_input: tuple[int, ...] = ()
    """Shape of targets that are the very tokens the causal model is given at their places."""
    dropping: tuple[DropoutFact, ...] = ()
    """Two passes in evaluation mode differed, and these calls drop values all the same."""
    cut_off: tuple[str, ...] = ()
    """Layers that ran and whose trainable parameters all got no gradient."""
    unregistered: tuple[ParameterFact, ...] = ()
    """Trainable parameters that got a gradient and belong to layers that ran but are not part of the model."""
    unregistered_place: Place | None = None
    unmoved: tuple[ParameterFact, ...] = ()
    """Parameters with a gradient that one step of their optimizer left as they were, bit by bit."""
    moved_frozen: tuple[ParameterFact, ...] = ()
    """Parameters without a gradient, frozen ones, that the step changed all the same."""
    gradient_norms: dict[str, float] = msgspec.field(default_factory=dict)


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """A past fact. `step` counts the optimizer steps that had been taken; `place` is the user's call site."""

    ABSENT: ClassVar[str] = "nothing of it was seen"
    """Why a rule that needs this event had nothing to look at."""

    step: int = 0
    place: Place | None = None
