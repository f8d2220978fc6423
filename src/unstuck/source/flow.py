"""Questions about where a value came from. Histories can be long, so no function here recurses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from unstuck.source.reader import knowledge
from unstuck.source.values import Choice, Const, Group, Param, Parameters, Tensor, Value


def producers(value: Value) -> Iterator[Value]:
    """What made the value, ignoring reshapes and casts: one producer for each branch that leads to it."""
    for option in _walk([value], lambda tensor: tensor.inputs[:1] if _keeps_values(tensor) else ()):
        if not isinstance(option, Tensor) or not _keeps_values(option):
            yield option


def _keeps_values(tensor: Tensor) -> bool:
    return tensor.op in knowledge.SAME_VALUES and bool(tensor.inputs) and not tensor.cut


def argument(tensor: Tensor, name: str, position: int) -> Value | None:
    """An argument of an operation besides its tensor: `dim` of `softmax(x, 1)`, `x.softmax(dim=1)` or `nn.Softmax(1)`.

    `position` counts from 0 without the tensor. None when it is missing.
    """
    given, named = tensor.args, tensor.options
    if tensor.module is not None and tensor.module.cls is None and tensor.op not in knowledge.LOSS_FUNCTIONS:
        given, named = tensor.module.args, tensor.module.kwargs
    if name in named:
        return named[name]
    return given[position] if position < len(given) else None


def behind(value: Value, *, through_cuts: bool = False) -> Iterator[Value]:
    """Everything the value was computed from, itself first, each once; past a cut only with `through_cuts`."""
    return _walk([value], lambda tensor: () if tensor.cut and not through_cuts else tensor.inputs)


class History:
    """The computation of a value: what detached it from the graph, and whether a gradient can still flow.

    `trained` are the ids of tensors that an optimizer was given.
    """

    def __init__(self, value: Value, trained: Collection[int] = ()) -> None:
        self._trained = trained
        self.cuts: list[Tensor] = []
        """The last operations that stop the gradient on its way to something trained."""
        self.alive = False
        """A gradient can reach a parameter, or something unknown."""
        for option in _walk([value], lambda tensor: () if tensor.cut else tensor.inputs):
            self._add(option)

    @property
    def detached(self) -> bool:
        """Certainly detached: no gradient gets through, and without the cuts one would reach something trained."""
        return bool(self.cuts) and not self.alive

    def _add(self, value: Value) -> None:
        if not isinstance(value, Tensor):
            self.alive = self.alive or not isinstance(value, Const)
        elif value.leaf or id(value) in self._trained:
            self.alive = True
        elif value.cut:
            if value.module is not None or reaches_training(value.inputs):
                self.cuts.append(value)
        elif value.op == "requires_grad_":
            self.alive = self.alive or not papers_over(value.inputs[0])
        elif value.module is not None and value.module.last not in knowledge.LOSSES:
            self.alive = self.alive or knowledge.has_weights(value.module) or value.module.cls is not None


def papers_over(value: Value) -> bool:
    """Does `requires_grad_()` on this value hide that it was detached from a model's output or a loss?"""
    return History(value).detached


def first_cut(cut: Tensor) -> Tensor:
    """The cut nearest to what is trained: of `float(loss.item())` that is `.item()`."""
    while True:
        deeper = History(Group(list(cut.inputs))).cuts
        if not deeper:
            return cut
        cut = deeper[0]


def reaches_training(values: Iterable[Value]) -> bool:
    """Were the values computed, cuts or not, from the output of a module with weights or from a loss?"""
    for value in _walk(values, lambda tensor: tensor.inputs):
        if isinstance(value, Param | Parameters):
            return True
        if isinstance(value, Tensor) and value.op in knowledge.LOSS_FUNCTIONS:
            return True
        if isinstance(value, Tensor) and value.module is not None and knowledge.has_weights(value.module):
            return True
    return False


def _walk(values: Iterable[Value], inputs: Callable[[Tensor], Iterable[Value]]) -> Iterator[Value]:
    """Each value once, nearest first, through branches, lists and the inputs of tensors that `inputs` names."""
    waiting = deque(values)
    seen: set[int] = set()
    while waiting:
        value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Choice):
            waiting.extend(value.options)
        elif isinstance(value, Group):
            waiting.extend(value.items)
        else:
            yield value
            if isinstance(value, Tensor):
                waiting.extend(inputs(value))
