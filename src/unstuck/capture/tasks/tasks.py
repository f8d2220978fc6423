"""Looks at a few backwards of a run: what does the loss ask of the model, and can it be what was meant?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.detect.graph import Node, nodes_from, operation, saved
from unstuck.capture.live_objects.arguments import tensors_in
from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.tasks import attentions, columns, covers, masks, messages, partners, sequences
from unstuck.capture.tasks.cells import Whole
from unstuck.capture.tasks.passes import Passes
from unstuck.capture.tasks.sequences import Wanted
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import Event, Place
from unstuck.events.losses import CLASS_LOSSES

_MOST_NODES = 6000
_LARGEST = 2**22
"""Numbers in a tensor that is kept until the backward."""
_MOST_KEPT = 8
_DENSE = 3
"""Windows at the start in all of which it is looked; then ever more rarely."""
_MOST_LOOKS = 12
_SECONDS = 2.0
"""Of our own time, in all."""


class Tasks(Observer):
    """Keeps what models were given and answered in a window, until a loss is back-propagated."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.is_looking = True
        """In this window."""
        self._ids: list[Tensor] = []
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._wanted: list[Wanted] = []
        self._passes = Passes(watch)
        self._looks = 0
        self._next = 0
        self._spent = 0.0
        protect = watch.guard.protect
        self._note_model = protect("what a loss asks", self._model_ran)
        self._note_inner = protect("what a loss asks", self._inner_ran)
        self._note_backward = protect("what a loss asks", self._backward)

    def model_ran(self, module: nn.Module, arguments: Any, output: Any, place: Place | None) -> None:
        """A model was called in a sampled window."""
        if self.is_looking and torch.is_grad_enabled() and may_measure():
            self._note_model(module, arguments, output, place)

    def inner_ran(self, module: nn.Module, root: nn.Module, arguments: Any, output: Any, place: Place | None) -> None:
        """A module inside of a model was called, with gradients, in a sampled window."""
        if self.is_looking and may_measure():
            self._note_inner(module, root, arguments, output, place)

    def compared(self, loss: str, source: Tensor, target: Tensor, ignored: int | None, place: Place | None) -> None:
        """A loss was computed in a sampled window."""
        if self.is_looking and source.grad_fn is not None and len(self._wanted) < _MOST_KEPT:
            self._wanted.append(Wanted(loss, source, target, ignored, place))

    def backward(self, loss: Tensor, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if not self.is_looking or loss.grad_fn is None or not loss.is_cpu or loss.numel() != 1 or not may_measure():
            return
        began = perf_counter()
        self._note_backward(loss, place)
        self._spent += perf_counter() - began
        self._forget()

    def window_began(self, ended: Ended) -> None:
        """Decide whether to look again."""
        if self.is_looking:
            self._forget()
        number = self._watch.window.number
        if self._looks >= _MOST_LOOKS or self._spent > _SECONDS:
            self.is_looking = False
            return
        self.is_looking = self._watch.window.sampled and (number < _DENSE or number >= self._next)

    def _forget(self) -> None:
        self._ids, self._inputs, self._outputs, self._wanted = [], [], [], []
        self._passes.forget()

    def _model_ran(self, module: nn.Module, arguments: Any, output: Any, place: Place | None) -> None:
        given = [one for one in tensors_in(arguments) if one.numel() <= _LARGEST and one.is_cpu and one.dim() > 0]
        if len(self._inputs) + len(self._ids) < _MOST_KEPT:
            self._ids += [one.detach() for one in given if is_whole(one) and one.dim() == 2]
            self._inputs += [one.detach() for one in given if is_plain(one) and not one.requires_grad]
            made = [one.detach() for one in tensors_in(output) if is_plain(one) and one.is_cpu]
            self._outputs += [one for one in made if 1 < one.numel() <= _LARGEST]
        self._inner_ran(module, module, arguments, output, place)

    def _inner_ran(self, module: nn.Module, root: nn.Module, arguments: Any, output: Any, place: Place | None) -> None:
        began = perf_counter()
        with reading():
            self._passes.ran(module, root, arguments, output, place)
        self._spent += perf_counter() - began

    def _backward(self, loss: Tensor, place: Place | None) -> None:
        self._looks += 1
        self._next = max(_DENSE, self._watch.window.number * 3 // 2)
        step = self._watch.window.steps
        with reading():
            nodes = nodes_from(loss.grad_fn, _MOST_NODES)
            whole = Whole(loss.grad_fn, nodes)
            ids = self._all_ids(nodes)
            classes = [one for one in self._wanted if one.loss in CLASS_LOSSES]
            padded = attentions.paddings(ids, self._inputs)
            self._passes.backward(nodes, len(nodes) < _MOST_NODES)
            looks: list[Callable[[], Event | None]] = [
                *(partial(sequences.placed, whole, one, ids, step, place) for one in classes),
                partial(covers.covered, whole, nodes, self._wanted, self._inputs, self._outputs, step, place),
                partial(attentions.keys_hidden, nodes, padded, step, place),
                partial(attentions.leaked, nodes, step, place),
                partial(partners.seen, whole, nodes, self._inputs, step, place),
                partial(masks.indexed, nodes, step, place),
                partial(messages.returned, nodes, self._ids, step, place),
                *(partial(columns.matched, one, self._inputs, step) for one in self._wanted),
            ]
            for look in looks:
                try:
                    event = look()
                except RuntimeError:  # an earlier backward has freed the graph: the one that follows fails by itself
                    return
                if event is not None:
                    self._watch.tell(event)

    def _all_ids(self, nodes: list[Node]) -> list[Tensor]:
        """Those that embeddings looked up; those that models were given, if no embedding is trained."""
        found = [
            index for node in nodes if operation(node) == "Embedding" and (index := saved(node, "indices")) is not None
        ]
        # What a model is given may be what it should answer; what it looks up is what it sees.
        return [one for one in (found[:_MOST_KEPT] or self._ids) if one.dim() == 2 and one.is_cpu]
