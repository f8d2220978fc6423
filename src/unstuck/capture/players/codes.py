"""The code of a variational autoencoder, read from the graph of its loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from unstuck.capture.detect.graph import Node, nodes_from, operation, saved
from unstuck.capture.players.head import Head
from unstuck.capture.window import Watch
from unstuck.events import CodeSeen, Place, Spread

_MOST_NODES = 6000
_FEWEST_DRAWS = 32
_DEEPEST = 6
_MOST_LOOKS = 10
_MOST_FOUND = 200


class _Divergence(NamedTuple):
    """`exp(logvar) + mu**2 - logvar - 1`, or a multiple of it, summed up by a node."""

    reduced: Node
    power: Node
    """The `exp`."""
    square: Node
    sign: int
    """Of the `exp` in the sum."""


class Codes:
    """Looks for a code in the first losses of a run, and then at the one that was found."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._looks = self._found = 0

    def backward(self, root: Node, head: Head, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if self._found < _MOST_FOUND and (self._found or self._looks < _MOST_LOOKS):
            self._looks += 1
            found = next((one for one in map(_divergence, head.nodes) if one is not None), None)
            if found is not None:
                self._found += 1
                self._watch.tell(_seen(root, found, self._watch.window.steps, place))


def _seen(root: Node, found: _Divergence, step: int, place: Place | None) -> CodeSeen:
    mean, variance = saved(found.square, "self"), saved(found.power, "result")
    nats: float | None = None
    size = 0
    if mean is not None and variance is not None and mean.shape == variance.shape and mean.dim() > 1:
        own = 0.5 * (mean.square() + variance - variance.log() - 1).double()
        nats, size = float(own.sum()) / len(mean), mean[0].numel()
    nodes = nodes_from(root, _MOST_NODES)
    pull = Head(root, [found.reduced]).pulls([found.reduced]).get(found.reduced)
    return CodeSeen(
        step=step,
        place=place,
        size=size,
        nats=nats,
        rewarded=pull is not None and found.sign * float(pull.sum()) < 0,
        spread=_spread(nodes, found),
        used=len(nodes) >= _MOST_NODES or _is_used(nodes, found),
    )


def _divergence(node: Node) -> _Divergence | None:
    if operation(node) not in ("Sum", "Mean") or node.next_functions[0][0] is None:
        return None
    parts: list[tuple[Node, int]] = [(node.next_functions[0][0], 1)]
    summands: list[tuple[Node, int]] = []
    for _ in range(_DEEPEST):
        inner: list[tuple[Node, int]] = []
        for part, sign in parts:
            name = operation(part)
            if name not in ("Add", "Sub", "Rsub", "Neg"):
                summands.append((part, sign))
                continue
            flips = {"Add": (1, 1), "Sub": (1, -1), "Rsub": (-1, 1), "Neg": (-1,)}[name]
            children = zip(part.next_functions, flips, strict=False)
            inner += [(child, sign * flip) for (child, _), flip in children if child is not None]
        parts = inner
    squares = [part for part, _ in summands if operation(part) == "Pow"]
    powers = [(part, sign) for part, sign in summands if operation(part) == "Exp"]
    if len(squares) != 1 or len(powers) != 1:
        return None
    (power, sign), square = powers[0], squares[0]
    signs = dict(summands)
    logarithm = power.next_functions[0][0]
    if signs.get(logarithm) != -sign or signs.get(square) != sign:
        return None
    return _Divergence(node, power, square, sign)


def _spread(nodes: Sequence[Node], found: _Divergence) -> Spread | None:
    logarithm = found.power.next_functions[0]
    for node in nodes:
        live = [(child, place) for child, place in node.next_functions if child is not None]
        if operation(node) != "Mul" or len(live) != 1:
            continue
        noise = saved(node, "self" if node.next_functions[0][0] is None else "other")
        if noise is None or not _is_noise(noise):
            continue
        factor, place = live[0]
        if (factor, place) == logarithm:
            return Spread.LOGARITHM
        if operation(factor) != "Exp":
            continue
        inside = factor.next_functions[0]
        if inside == logarithm:
            return Spread.VARIANCE
        below = [child for child, _ in inside[0].next_functions if child is not None]
        if operation(inside[0]) in ("Mul", "Div") and below == [logarithm[0]]:
            return Spread.STD
    return None


def _is_noise(values: Tensor) -> bool:
    """Does it look drawn from the standard Gaussian?"""
    if values.numel() < _FEWEST_DRAWS or not values.is_floating_point():
        return False
    return abs(float(values.mean())) < 0.5 and 0.6 < float(values.std()) < 1.5 and float(values.min()) < 0


def _is_used(nodes: Sequence[Node], found: _Divergence) -> bool:
    """Does anything but the divergence use the mean?"""
    mean = found.square.next_functions[0]
    return any(mean in node.next_functions for node in nodes if node != found.square)
