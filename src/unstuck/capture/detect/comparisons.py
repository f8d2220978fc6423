"""Reads from the graph of a loss that is written out what it compares: answers with numbers, or scores with classes.

Autograd keeps the difference, and the answers are known: so are the targets. Nothing is read but what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Token, is_in_order, is_see_through, operation, saved, saved_list, shape_of
from unstuck.capture.measure.tensors import is_plain

LARGEST = 2**16
"""Numbers in an answer that is kept until its loss is known."""
_DEEPEST = 12
_KEY = "unstuck.answer"
_SUMS = ("Add", "Sub")
_SIGNS = ("Neg", "Mul", "Div")
_INNER = frozenset({"Neg", "Sum", "Mean", "View", "Squeeze", "Unsqueeze", "Reshape"})


class Comparison(NamedTuple):
    """What a loss compares, as the function of torch that does the same would be given it."""

    loss: str
    source: Tensor
    target: Tensor
    result: Tensor
    """The mean over all targets."""


class Answer:
    """What a model returned in training, until the loss that it leads to is known."""

    def __init__(self, tensor: Tensor) -> None:
        self.values = tensor.detach()
        node: Any = tensor.grad_fn
        self._token = node.metadata.setdefault(_KEY, Token())  # whoever else follows this answer has given it one

    def made(self, node: Any) -> bool:
        """Does this node hand on what the model returned?"""
        for _ in range(_DEEPEST):
            if node is None:
                return False
            if node.metadata.get(_KEY) is self._token:
                return True
            children = [child for child, _ in node.next_functions if child is not None]
            if not is_in_order(node) or len(children) != 1:
                return False
            node = children[0]
        return False


def comparison_in(root: Any, answer: Answer) -> Comparison | None:
    """The first one among the summands of a loss. Call it before the backward, where no graph is built."""
    for node in _summands(root):
        found = _of_numbers(node, answer) or _of_classes(node, answer)
        if found is not None:
            return found
    return None


def _summands(node: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    """What means and sums are taken of: through sums, and products with constants."""
    children = [child for child, _ in node.next_functions if child is not None]
    name = operation(node)
    if name in ("Mean", "Sum") and len(children) == 1:
        yield _skip(children[0])
    elif depth and shape_of(node) in ((), (1,)):
        constant = len(children) == 1 and (name in _SIGNS or is_see_through(node))
        for child in children if constant or name in _SUMS else ():
            yield from _summands(child, depth - 1)


def _skip(node: Any) -> Any:
    """Down through signs, reshapes and inner sums, as of squares over the last axis."""
    for _ in range(_DEEPEST):
        children = [child for child, _ in node.next_functions if child is not None]
        if len(children) != 1 or operation(node) not in _INNER:
            break
        node = children[0]
    return node


def _of_numbers(node: Any, answer: Answer) -> Comparison | None:
    """A square or an absolute value of a difference from the answers."""
    name, exponent = operation(node), getattr(node, "_saved_exponent", None)
    squared = name == "Pow" and exponent == 2
    if not squared and name != "Abs":
        return None
    difference, way = saved(node, "self"), node.next_functions[0][0]
    if difference is None or not is_plain(difference) or way is None or operation(way) != "Sub":
        return None
    sides = [child for child, _ in way.next_functions]
    if len(sides) != 2 or (sides[0] is None) == (sides[1] is None):
        return None
    if not answer.made(sides[0] or sides[1]) or getattr(way, "_saved_alpha", 1) != 1:
        return None
    sign = 1.0 if sides[1] is None else -1.0
    targets = _targets(answer.values, difference, sign)
    if targets is None:
        return None
    cost = difference.float().square().mean() if squared else difference.float().abs().mean()
    return Comparison("mse_loss" if squared else "l1_loss", answer.values, targets, cost)


def _targets(answers: Tensor, difference: Tensor, sign: float) -> Tensor | None:
    """What was subtracted from the answers, or what they were subtracted from."""
    if answers.numel() == difference.numel():
        return answers.reshape(difference.shape) - sign * difference
    size = answers.numel()
    if difference.dim() != 2 or size not in difference.shape:
        return None
    # (N, 1) and (N,) make a table: the targets are what is the same in all its rows, or in all its columns.
    for shape, axis in (((size, 1), 0), ((1, size), 1)):
        if difference.shape[axis] == size:
            table = answers.reshape(shape) - sign * difference
            first = table.narrow(axis, 0, 1)
            if torch.allclose(table, first.expand_as(table), rtol=1e-3, atol=1e-4):
                return first.reshape(-1)
    return None


def _of_classes(node: Any, answer: Answer) -> Comparison | None:
    """The logarithm of the softmax of the answers, at the right classes."""
    chain = []
    for _ in range(_DEEPEST):
        children = [child for child, _ in node.next_functions if child is not None]
        chain.append(node)
        if len(children) != 1 or operation(node) in ("Softmax", "LogSoftmax"):
            break
        node = children[0]
    names = [operation(each) for each in chain]
    picks = [each for each, name in zip(chain, names, strict=True) if name in ("Index", "Gather")]
    known = {"Neg", "Log", "Index", "Gather", "Squeeze", "View", "Clamp", "ClampMin", "Add", "LogSoftmax", "Softmax"}
    logs = ("LogSoftmax" in names) != ("Log" in names and "Softmax" in names)
    if len(picks) != 1 or not logs or not set(names) <= known or not answer.made(chain[-1].next_functions[0][0]):
        return None
    scores = answer.values
    labels = _picked(picks[0], len(scores)) if scores.dim() == 2 else None
    if labels is None or len(labels) != len(scores):
        return None
    return Comparison("cross_entropy", scores, labels, torch.nn.functional.cross_entropy(scores.float(), labels))


def _picked(node: Any, rows: int) -> Tensor | None:
    """The class of each row, if one is picked from each."""
    if operation(node) == "Gather":
        index = saved(node, "index")
        return index.reshape(-1).long() if index is not None and index.numel() == rows else None
    found = saved_list(node, "indices")
    if len(found) != 2 or found[0] is None or found[1] is None or found[0].numel() != rows:
        return None
    in_order = torch.equal(found[0].reshape(-1), torch.arange(rows, device=found[0].device))
    return found[1].reshape(-1).long() if in_order and found[1].dtype is torch.int64 else None
