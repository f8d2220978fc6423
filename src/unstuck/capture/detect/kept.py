"""Watches whether the graphs of past steps are still in memory."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from torch import Tensor

from unstuck.capture.measure.tensors import may_measure
from unstuck.capture.watch import Watch
from unstuck.events import GraphsKept

FEWEST = 8
"""Graphs of so many steps in a row are no variable that happens to be around."""
_MOST = 64


class Token:
    """Lies in the metadata of a node of a graph, and goes when the node goes."""

    __slots__ = ("__weakref__",)


class KeptGraphs:
    """Tells when the graphs of 8, 16, 32 and 64 recorded steps are alive at once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._graphs: deque[weakref.ref[Token]] = deque(maxlen=_MOST)
        self._window = -1
        self._next = FEWEST
        self._key = f"unstuck.loss.{id(self)}"
        """Another watch of the same program lays its own token beside ours."""

    def backward(self, loss: Tensor, retained: bool) -> None:
        """`backward()` begins, in a sampled window. Only the first of a window counts."""
        clock = self._watch.clock
        node: Any = loss.grad_fn
        if clock.windows == self._window or node is None or retained or self._next > _MOST or not may_measure():
            return
        self._window = clock.windows
        token = Token()
        # A node outlives its Python object; what lies in its metadata does not outlive the node.
        node.metadata[self._key] = token
        self._graphs.append(weakref.ref(token))
        alive = 0
        for graph in reversed(self._graphs):
            if graph() is None:
                break
            alive += 1
        if alive // clock.optimizers >= self._next:
            self._next *= 2
            self._watch.tell(GraphsKept(step=clock.steps, place=self._watch.places.here(), alive=alive))
