"""Iterating over a value: what one member of a list, a network or a data loader is."""

from __future__ import annotations

import ast
import re
from functools import reduce

from unstuck.lazy import pattern
from unstuck.source.nodes import parts_of
from unstuck.source.reader.scope import dotted
from unstuck.source.values import UNKNOWN, Group, Instance, Param, Parameters, Tensor, Value, alternatives, join

GOES_THROUGH = frozenset("enumerate list tuple reversed iter sorted".split())
"""Builtins that give the members of what they are given."""
BATCH_WORDS = pattern(r"batch|data|sample|inputs?|images?|imgs?|labels?|targets?|^x$|^y$|^xb$|^yb$|tokens", re.I)


def collection_name(iterated: ast.expr) -> str:
    """The name of what is gone through: `self.optimizers` of `enumerate(self.optimizers.values())`."""
    while isinstance(iterated, ast.Call):
        function = iterated.func
        if isinstance(function, ast.Attribute) and function.attr in ("items", "values") and not iterated.args:
            iterated = function.value
        elif isinstance(function, ast.Name) and function.id in GOES_THROUGH and len(iterated.args) == 1:
            iterated = iterated.args[0]
        else:
            return ""
    return dotted(iterated)


def each(value: Value, target: ast.expr | None = None) -> Value:
    """One member of something iterated over; what a loader yields is data, without history."""
    return reduce(join, [_one_of(option, target) for option in alternatives(value)])


def _one_of(value: Value, target: ast.expr | None) -> Value:
    if isinstance(value, Parameters):
        return Param(value.owner)
    if isinstance(value, Group | Instance) and value.items:
        return reduce(join, value.items)
    if isinstance(value, Instance) and value.last == "DataLoader":
        dataset = value.args[0] if value.args else value.kwargs.get("dataset", UNKNOWN)
        if isinstance(dataset, Instance) and dataset.last == "TensorDataset" and dataset.args:
            return Group([Tensor("batch", (tensor,), args=(value,)) for tensor in dataset.args])
        return Tensor("data", args=(value,))
    if isinstance(value, Tensor):
        return Tensor("data", (value,))
    words = [part.id for part in parts_of(target) if isinstance(part, ast.Name)] if target is not None else []
    return Tensor("data") if any(BATCH_WORDS.search(word) for word in words) else UNKNOWN
