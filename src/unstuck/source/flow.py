"""Questions about where a value came from."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.source import knowledge
from unstuck.source.values import Choice, Const, Group, Instance, Param, Parameters, Tensor, Value, alternatives


def producers(value: Value) -> Iterator[Value]:
    """What made the value, seen through reshapes, casts and branches: one for each way it may have come about."""
    for option in alternatives(value):
        if isinstance(option, Tensor) and option.op in knowledge.SAME_VALUES and option.inputs and not option.cut:
            yield from producers(option.inputs[0])
        else:
            yield option


class History:
    """Everything behind a value: what cut it off the graph, and whether a gradient can still flow."""

    def __init__(self, value: Value) -> None:
        self.cuts: list[Tensor] = []
        """Operations nearest to the value behind which no gradient flows, though something trained lies there."""
        self.alive = False
        """Some way back reaches a parameter, or something unknown, without being cut."""
        self._seen: set[int] = set()
        self._follow(value)

    @property
    def detached(self) -> bool:
        """Certainly cut off: every way back is cut, and at least one would have led to something trained."""
        return bool(self.cuts) and not self.alive

    def _follow(self, value: Value) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Choice):
            for option in value.options:
                self._follow(option)
        elif isinstance(value, Group):
            for item in value.items:
                self._follow(item)
        elif isinstance(value, Tensor):
            self._follow_tensor(value)
        elif not isinstance(value, Const):
            self.alive = True

    def _follow_tensor(self, tensor: Tensor) -> None:
        if tensor.cut:
            if tensor.module is not None or any(reaches_training(item) for item in tensor.inputs):
                self.cuts.append(tensor)
        elif tensor.op == "requires_grad_" and not papers_over(tensor):
            self.alive = True
        elif tensor.module is not None and tensor.module.last not in knowledge.LOSSES:
            self.alive = self.alive or knowledge.has_weights(tensor.module) or tensor.module.cls is not None
            for item in tensor.inputs:
                self._follow(item)
        else:
            for item in tensor.inputs:
                self._follow(item)


def papers_over(tensor: Tensor) -> bool:
    """`requires_grad_()` on a value that was cut off a model's output or a loss: it hides the mistake."""
    history = History(tensor.inputs[0])
    return history.detached


def reaches_training(value: Value, depth: int = 0) -> bool:
    """Does anything behind the value, cuts or not, come out of a module with weights or a loss?"""
    if depth > 60:
        return False
    if isinstance(value, Param | Parameters):
        return True
    if isinstance(value, Choice | Group):
        options = value.options if isinstance(value, Choice) else tuple(value.items)
        return any(reaches_training(option, depth + 1) for option in options)
    if not isinstance(value, Tensor):
        return False
    if value.op in knowledge.LOSS_FUNCTIONS:
        return True
    if isinstance(value.module, Instance) and knowledge.has_weights(value.module):
        return True
    return any(reaches_training(item, depth + 1) for item in value.inputs)
