"""What a loss ends in: formulas near an edge, limits, masked means, sums of terms. Read from the graph a few times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, is_see_through, operation, saved, shape_of
from unstuck.capture.measure.tensors import may_measure, reading
from unstuck.capture.watch import Watch
from unstuck.events import GraphFact, OperationFact, Place, TermFact

_FIRST_READS = 3
_MOST_PLACES = 16
_MOST_NODES = 400
_MOST_NAMES = 12
_MOST_FACTS = 12
_LONGEST_CHAIN = 12
_LARGEST = 2**22
"""Elements of a tensor that is still looked at."""
_TINY = 1e-30
"""So near to 0 that the next step may well be there; guards such as 1e-8 keep far from it."""
_HUGE = 1e-6
"""As a share of the largest number of its type."""
_LOSSES = {
    "MseLoss": "mse_loss",
    "NllLoss": "cross_entropy",
    "NllLoss2D": "cross_entropy",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
}
_REDUCTIONS = {1: "mean", 2: "sum"}


class Formulas:
    """Decides when a graph is read: at the first backwards of a place, then ever less often, and at the first NaN."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._reads: dict[Place | None, int] = {}
        self._next: dict[Place | None, int] = {}
        self._has_broken = False

    def read(self, loss: Tensor, place: Place | None) -> GraphFact | None:
        """The end of the graph of `loss`, if it is time to look."""
        window = self._watch.window
        wanted = (window.is_survey and self._is_due(place)) or (window.sampled and self._breaks(loss))
        return graph_fact(loss.grad_fn) if wanted and loss.grad_fn is not None and may_measure() else None

    def _breaks(self, loss: Tensor) -> bool:
        """Is this the first loss that is NaN or infinite? Its graph shows the operation at its edge.

        On the CPU only: elsewhere the program would have to wait for the value.
        """
        if self._has_broken or loss.device.type != "cpu" or loss.numel() != 1 or loss.is_complex():
            return False
        with reading():
            self._has_broken = not math.isfinite(loss.item())
        return self._has_broken

    def _is_due(self, place: Place | None) -> bool:
        step, reads = self._watch.window.steps, self._reads.get(place, 0)
        if step < self._next.get(place, 0) or (reads == 0 and len(self._reads) >= _MOST_PLACES):
            return False
        self._reads[place] = reads + 1
        if reads + 1 >= _FIRST_READS:
            self._next[place] = max(10, 3 * step)
        return True


def graph_fact(root: Node) -> GraphFact:
    """What can be said of the end of a graph, before its backward."""
    with reading():
        nodes = _nearest(root)
        names = tuple(str(node.name()) for node in nodes[:_MOST_NAMES])
        facts = (fact for node in nodes for fact in _facts(node))
        found = tuple(fact for fact, _ in zip(facts, range(_MOST_FACTS), strict=False))
        return GraphFact(names, found, tuple(_terms(root)))


def _nearest(root: Node) -> list[Node]:
    """The nodes by their distance from the loss."""
    found: list[Node] = []
    seen, waiting = {root}, deque([root])
    while waiting and len(found) < _MOST_NODES:
        node = waiting.popleft()
        found.append(node)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return found


def _facts(node: Node) -> Iterator[OperationFact]:
    name = operation(node)
    if name in _EDGES:
        span = _EDGES[name](node)
        if span is not None:
            yield _fact(node, low=span[0], high=span[1])
    elif name in ("Clamp", "ClampMax", "Minimum"):
        yield from _limit(node, name)
    elif name == "Mean":
        yield from _masked_mean(node)
    elif name == "Sub":
        yield from _stretched(node)


def _fact(node: Node, **numbers: Any) -> OperationFact:
    child = next((child for child, _ in node.next_functions if child is not None), None)
    chain = tuple(_chain(child))
    return OperationFact(
        operation(node).lower(), chain, shape_of(node), shape_of(child) if child is not None else (), **numbers
    )


def _chain(node: Node) -> Iterator[str]:
    """The names from here down, along the first input that needs gradients, as `mul`, `nllloss`."""
    for _ in range(_LONGEST_CHAIN):
        if node is None or not node.next_functions:
            return
        if not is_see_through(node):
            yield operation(node).lower()
        node = next((child for child, _ in node.next_functions if child is not None), None)


def _range(tensor: Tensor | None) -> tuple[float, float] | None:
    if tensor is None or not 0 < tensor.numel() <= _LARGEST or tensor.is_complex():
        return None
    low, high = torch.aminmax(tensor)
    return float(low), float(high)


def _near_zero(name: str, edge: float = _TINY) -> Any:
    """The range of a saved tensor, if it comes this near to 0, or below it."""

    def look(node: Node) -> tuple[float, float] | None:
        span = _range(saved(node, name))
        return span if span is not None and span[0] < edge else None

    return look


def _near_infinity(node: Node) -> tuple[float, float] | None:
    result = saved(node, "result")
    span = _range(result)
    near = span is not None and result is not None and span[1] > _HUGE * torch.finfo(result.dtype).max
    return span if near else None


def _denominator(node: Node) -> tuple[float, float] | None:
    other = saved(node, "other")
    span = _range(other.abs()) if other is not None and other.numel() <= _LARGEST else None
    return span if span is not None and span[0] < _TINY else None


def _root(node: Node) -> tuple[float, float] | None:
    span = _near_zero("result", math.sqrt(_TINY))(node)
    return (span[0] ** 2, span[1] ** 2) if span is not None else None


def _arc(node: Node) -> tuple[float, float] | None:
    span = _range(saved(node, "self"))
    return span if span is not None and max(-span[0], span[1]) >= 1 else None


def _power(node: Node) -> tuple[float, float] | None:
    exponent = getattr(node, "_saved_exponent", None)
    if not isinstance(exponent, int | float) or exponent >= 1 or exponent == 0:
        return None
    base = saved(node, "self")
    span = _range(base.abs()) if base is not None and base.numel() <= _LARGEST else None
    return span if span is not None and span[0] < _TINY else None


_EDGES: dict[str, Any] = {
    "Log": _near_zero("self"),
    "Log2": _near_zero("self"),
    "Log10": _near_zero("self"),
    "Sqrt": _root,
    "Div": _denominator,
    "Exp": _near_infinity,
    "Rsqrt": _near_infinity,
    "Reciprocal": _near_infinity,
    "Acos": _arc,
    "Asin": _arc,
    "Pow": _power,
}
"""Operations that are not finite somewhere, or have no finite slope there, and how to see that it is near."""


def _limit(node: Node, name: str) -> Iterator[OperationFact]:
    value, other = saved(node, "self"), saved(node, "other")
    low, high = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    if value is None or not 0 < value.numel() <= _LARGEST:
        return
    if name == "Minimum":
        if other is None or other.numel() == 0 or bool((other != other.reshape(-1)[0]).any()):
            return
        high = float(other.reshape(-1)[0])
    if not isinstance(high, int | float):
        return
    beyond = value > high
    if isinstance(low, int | float):
        beyond = beyond | (value < low)
    yield _fact(node, low=low, limit=float(high), share=float(beyond.float().mean()))


def _masked_mean(node: Node) -> Iterator[OperationFact]:
    """The mean of losses times a mask of ones that end, or begin, with zeros: padding."""
    product = node.next_functions[0][0]
    if product is None or operation(product) != "Mul":
        return
    mask = saved(product, "self" if product.next_functions[0][0] is None else "other")
    if mask is None or mask.dim() < 2 or mask.shape != shape_of(product) or mask.numel() > _LARGEST:
        return
    binary = (mask == 0) | (mask == 1)
    steps = mask.diff(dim=1)
    padded = bool(((steps <= 0).all(1) | (steps >= 0).all(1)).all())
    if padded and bool(binary.all()):
        yield _fact(node, share=float((mask == 0).float().mean()))


def _stretched(node: Node) -> Iterator[OperationFact]:
    """A difference of (N, 1) and (N,), which is N x N; one of the two comes from a layer as it is."""
    shape = shape_of(node)
    known = [child for child, _ in node.next_functions if child is not None]
    if len(known) != 1 or len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return
    if not is_see_through(known[0]) or operation(known[0]) == "Squeeze":
        given = shape_of(known[0])
        if given in ((shape[0], 1), (shape[0],)):
            yield _fact(node)


def _terms(node: Node, weight: float = 1.0, depth: int = 12) -> Iterator[TermFact]:
    """The summands of a loss whose reduction can be read, with the constants before them."""
    name = operation(node)
    children = [child for child, _ in node.next_functions if child is not None]
    if depth == 0 or shape_of(node) not in ((), (1,)):
        return
    if name in ("Add", "Sub", "Neg") or is_see_through(node):
        for child in children:
            yield from _terms(child, weight, depth - 1)
    elif name in ("Mul", "Div") and len(children) == 1:
        factor = _constant(node, "self" if node.next_functions[0][0] is None else "other")
        if factor:
            yield from _terms(children[0], weight * factor if name == "Mul" else weight / factor, depth - 1)
    elif name in _LOSSES and children:
        reduction = _REDUCTIONS.get(getattr(node, "_saved_reduction", 0))
        if reduction:
            yield TermFact(_LOSSES[name], reduction, weight, shape_of(children[0]))
    elif name in ("Mean", "Sum") and children:
        yield TermFact(name.lower(), name.lower(), weight, shape_of(children[0]), _is_divergence(children[0]))


def _is_divergence(node: Node) -> bool:
    """A sum of an exponential, a square and what the exponential was taken of: that of a Gaussian from the standard."""
    parts, depth = [node], 6
    summands: list[Node] = []
    while parts and depth:
        inner = [part for part in parts if operation(part) in ("Add", "Sub", "Neg")]
        summands += [part for part in parts if part not in inner]
        parts, depth = [child for part in inner for child, _ in part.next_functions if child is not None], depth - 1
    squares = [part for part in summands if operation(part) == "Pow"]
    powers = [part for part in summands if operation(part) == "Exp"]
    return len(squares) == len(powers) == 1 and powers[0].next_functions[0][0] in summands


def _constant(node: Node, name: str) -> float | None:
    value = saved(node, name)
    return abs(float(value)) if value is not None and value.numel() == 1 else None
