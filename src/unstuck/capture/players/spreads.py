"""Observes likelihoods that are written out: an error divided by a spread that is learned.

Such a loss has two parts that depend on the spread. A larger spread makes the error count less, so the other part must
make it cost more; where both push the same way, the spread grows without a limit and nothing else is learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, is_see_through, operation, shape_of
from unstuck.capture.players.head import FORMULA, Head
from unstuck.capture.window import Watch
from unstuck.events import Place, SpreadSeen

_MOST_LOOKS = 12
_WITHOUT = 4
"""Looks that find nothing, after which no more is looked for."""
_HIGHEST = 10
_DEEPEST = 12
_ERRORS = frozenset({"MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "NllLoss"})
_ON_THE_WAY_UP = frozenset({"Pow", "Abs", "Mul", "Div", "Neg", "Sum", "Mean"})
_ON_THE_WAY_DOWN = frozenset(
    {"Exp", "Neg", "Mul", "Div", "Add", "Sub", "Rsub", "Softplus", "Clamp", "ClampMin", "Pow", "Sqrt", "Reciprocal"}
)
_FEWEST = 0.95
_NOTHING = 1e-6


class _Formula(Head):
    """More of a graph than a policy needs, and nothing in it is taken for one."""

    formula = FORMULA | {"Logsumexp", "Reciprocal", "Rsqrt", "Log1P"}

    def _recognize(self, node: Node) -> bool:
        return False


class _Scaled(NamedTuple):
    """An error times or over something that is learned."""

    product: Node
    spread: tuple[Node, int]
    """Where that comes from."""


class Spreads:
    """Looks for a learned spread in the first losses of a run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._looks = self._found = 0

    def backward(self, root: Node, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if self._looks >= _MOST_LOOKS or (not self._found and self._looks >= _WITHOUT):
            return
        self._looks += 1
        whole = _Formula(root)
        for scaled in _scaled_errors(whole) if whole.is_whole else ():
            event = self._read(whole, scaled, place)
            if event is not None:
                self._found += 1
                self._watch.tell(event)
                return

    def _read(self, whole: Head, scaled: _Scaled, place: Place | None) -> SpreadSeen | None:
        weight = whole.pulls([scaled.product]).get(scaled.product)
        total = whole.pulls_of({scaled.spread}).get(scaled.spread)
        if weight is None or total is None or not _is_positive(weight):
            return None
        inner = _Formula(scaled.product)
        error = inner.pulls_of({scaled.spread}, weight).get(scaled.spread)
        if error is None or error.shape != total.shape or not bool(torch.isfinite(error).all()):
            return None
        rest = total.double() - error.double()
        counted = error != 0
        if not bool(counted.any()):
            return None
        error, rest = error.double()[counted], rest[counted]
        together = rest * error > 0
        return SpreadSeen(
            step=self._watch.window.steps,
            place=place,
            spreads=error.numel(),
            together=float(together.double().mean()),
            alone=float(rest.abs().max()) <= _NOTHING * float(error.abs().max()),
            shared=hasattr(scaled.spread[0], "variable"),  # it is a parameter
        )


def _is_positive(weight: Tensor) -> bool:
    """Does the loss rise with the error of nearly every example? Not where these are weighted by returns."""
    return bool((weight >= 0).all() or (weight <= 0).all()) and bool((weight != 0).any())


def _scaled_errors(whole: Head) -> Iterator[_Scaled]:
    parents: dict[Node, list[Node]] = {}
    for node in whole.nodes:
        for child, _ in node.next_functions:
            if child is not None:
                parents.setdefault(child, []).append(node)
    for node in whole.nodes:
        if operation(node) in _ERRORS or (operation(node) == "Sub" and _is_error(node)):
            found = _scaled(node, parents)
            if found is not None:
                yield found


def _is_error(node: Node) -> bool:
    """A difference between what is computed and what is given."""
    children = [child for child, _ in node.next_functions[:2]]
    return len(children) == 2 and (children[0] is None) != (children[1] is None) and shape_of(node) != ()


def _scaled(error: Node, parents: dict[Node, list[Node]]) -> _Scaled | None:
    """Up from the error to where it is multiplied or divided by something else, and down from there."""
    each, squared = error, operation(error) in _ERRORS
    for _ in range(_HIGHEST):
        above = list(dict.fromkeys(parents.get(each, ())))
        if len(above) != 1:
            return None
        parent = above[0]
        edges = [(child, place) for child, place in parent.next_functions if child is not None]
        name = operation(parent)
        if name in ("Mul", "Div") and len(edges) == 2:
            if edges[0][0] is edges[1][0]:  # the error times itself
                each, squared = parent, True
                continue
            other = next(edge for edge in edges if edge[0] is not each)
            found = _end_of(other)
            if found is None or (name == "Div" and edges[1][0] is each):
                return None
            if squared or name == "Mul":
                return _Scaled(parent, found) if squared else None
            square = _square_above(parent, parents)
            return _Scaled(square, found) if square is not None else None
        if name not in _ON_THE_WAY_UP and not is_see_through(parent):
            return None
        squared = squared or name in ("Pow", "Abs")
        each = parent
    return None


def _square_above(node: Node, parents: dict[Node, list[Node]]) -> Node | None:
    """Where an error that was divided already is squared."""
    above = list(dict.fromkeys(parents.get(node, ())))
    return above[0] if len(above) == 1 and operation(above[0]) in ("Pow", "Abs") else None


def _end_of(edge: tuple[Node, int]) -> tuple[Node, int] | None:
    """What a spread is computed from, one operation after the other; None if that is more than one thing."""
    was_followed = False
    for _ in range(_DEEPEST):
        node = edge[0]
        edges = [(child, place) for child, place in node.next_functions if child is not None]
        if operation(node) not in _ON_THE_WAY_DOWN or len(set(edges)) != 1:
            break
        was_followed = was_followed or operation(node) in ("Exp", "Softplus", "Pow", "Sqrt", "Reciprocal")
        edge = edges[0]
    return (_picked_from(edge) or edge) if was_followed else None


def _picked_from(edge: tuple[Node, int]) -> tuple[Node, int] | None:
    """The parameter behind `log_var[i]`, which every use picks for itself."""
    for _ in range(_DEEPEST):
        if hasattr(edge[0], "variable"):
            return edge
        children = [(child, place) for child, place in edge[0].next_functions if child is not None]
        if not is_see_through(edge[0]) or len(children) != 1:
            return None
        edge = children[0]
    return None
