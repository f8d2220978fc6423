"""Observes updates that a program makes by itself, without an optimizer of torch: `p -= rate * p.grad` and the like."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.detect import graph
from unstuck.capture.measure.tensors import is_plain, may_measure, reading, sample
from unstuck.capture.window import Watch
from unstuck.events import HandStep, Place

LABEL = "updates by hand"
_MOST_TENSORS = 4
_MOST_NODES = 400
_MOST_PLACES = 8
_PART = 2048
"""Elements of a tensor that stand for all of it."""


class _Weights:
    """Some of the weights that gradients were asked for, as they were then."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        """Until the gradients are there: whoever keeps a parameter keeps it from being swapped."""
        self.now = [sample(tensor.detach()).reshape(-1)[:_PART] for tensor in tensors]
        """A part of each, as it is at any moment if it is changed in place."""
        self.values = [part.clone() for part in self.now]
        self.gradients: list[Tensor | None] = []


class HandSteps:
    """Ends a window where the weights have changed since gradients were last asked for, in a program that has built no
    optimizer.

    That shows when gradients are asked for again: the first window ends then, each later one with its backward.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._weights: _Weights | None = None
        self._labels: dict[Place | None, str] = {}
        self._label = LABEL
        self._steps = 0
        self._changed = False
        self._optimizer: weakref.ref[Optimizer] | None = None
        """One that exists, as asking for it at every backward must be cheap."""

    def is_possible(self) -> bool:
        """Is there no optimizer that could make the steps?"""
        if self._optimizer is not None and self._optimizer() is not None:
            return False
        optimizer = next((each for each, _ in self._watch.objects.optimizers()), None)
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None
        return optimizer is None

    def takes_part(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Does this call of `autograd.grad` ask for the gradient of a loss with respect to weights?"""
        loss = _only(args[0] if args else kwargs.get("outputs"))
        inputs = _listed(args[1] if len(args) > 1 else kwargs.get("inputs"))
        again = (len(args) > 4 and args[4]) or kwargs.get("create_graph")
        return loss is not None and loss.numel() == 1 and not again and self.may_train(inputs)

    def may_train(self, inputs: list[Tensor]) -> bool:
        """Could these be weights, rather than the input of a model?"""
        if not inputs or not self.is_possible():
            return False
        return len(inputs) > 1 or isinstance(inputs[0], nn.Parameter) or not self._watch.objects.models()

    def asked(self, loss: Tensor, inputs: Any) -> None:
        """Gradients of this loss are about to be computed: with respect to these, or to everything behind it."""
        if not self.is_possible() or not may_measure():
            self._weights, self._changed = None, False
            return
        with reading():
            last, weights = self._weights, self._looked_up(loss, inputs)
            self._weights = weights
            self._changed = last is not None and weights is not None and self._has_changed(last, weights)
        if self._changed and self._steps == 0:
            self._end_window()

    def answered(self, place: Place | None, gradients: Any) -> None:
        """They were computed; `gradients` of `autograd.grad`, else they are in `.grad`."""
        weights = self._weights
        if weights is None:
            return
        if place is not None or len(self._labels) > 1:
            self._label = self._label_of(place or self._watch.places.here())
        if self._watch.window.sampled:
            with reading():
                given: list[Tensor | None] = [*_listed(gradients)]
                given = given or [tensor.grad for tensor in weights.tensors]
                kept = given[: len(weights.values)]
                weights.gradients = [_part(one) if is_plain(one) and one is not None else None for one in kept]
        weights.tensors = []
        if self._changed:
            self._changed = False
            self._end_window()

    def _end_window(self) -> None:
        self._steps += 1
        self._watch.window.step_taken(by_hand=self._label)

    def _looked_up(self, loss: Tensor, inputs: Any) -> _Weights | None:
        given = [tensor for tensor in _listed(inputs) if is_plain(tensor)]
        if not given and loss.grad_fn is not None:
            nodes = graph.nodes_from(loss.grad_fn, _MOST_NODES)
            leaves = {id(leaf): leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
            given = [leaf for leaf in leaves.values() if is_plain(leaf)]
        return _Weights(given[:_MOST_TENSORS]) if given else None

    def _has_changed(self, last: _Weights, now: _Weights) -> bool:
        """Those that are still there are compared with themselves; new ones of the same shapes with what was there."""
        if [value.shape for value in last.values] == [value.shape for value in now.values]:
            pairs = list(zip(last.values, now.values, strict=True))
            changed = not all(torch.equal(before, after) for before, after in pairs)
            if changed:
                self._tell(last, now)
            return changed
        return not all(map(torch.equal, last.now, last.values))

    def _tell(self, last: _Weights, now: _Weights) -> None:
        moves = [after - before for before, after in zip(last.values, now.values, strict=True)]
        known = [(move, g) for move, g in zip(moves, last.gradients, strict=False) if g is not None]
        if not self._watch.window.sampled or not known or any(move.shape != g.shape for move, g in known):
            return
        move, gradient = (torch.cat([pair[at] for pair in known]).double() for at in (0, 1))
        both = float(move @ gradient)
        lengths = float(move.norm()), float(gradient.norm())
        if not min(lengths):
            return
        self._watch.emit(
            HandStep(
                step=self._watch.window.steps,
                optimizer=self._label,
                along=-both / (lengths[0] * lengths[1]),
                rate=-both / lengths[1] ** 2,
            )
        )

    def _label_of(self, place: Place | None) -> str:
        """Gradients that are asked for at different lines may be those of different players."""
        if place not in self._labels and len(self._labels) < _MOST_PLACES:
            number = len(self._labels) + 1
            self._labels[place] = LABEL if number == 1 else f"{LABEL} {number}"
        return self._labels.get(place, LABEL)


def _part(tensor: Tensor) -> Tensor:
    return sample(tensor.detach()).reshape(-1)[:_PART].clone()


def _only(value: Any) -> Tensor | None:
    listed = _listed(value)
    return listed[0] if len(listed) == 1 else None


def _listed(value: Any) -> list[Tensor]:
    """Tensors in a list or tuple. An iterator is left alone: what we take out of it, torch would miss."""
    if isinstance(value, Tensor):
        return [value]
    found = list(value) if isinstance(value, list | tuple) or type(value).__name__ == "dict_values" else []
    return found if all(isinstance(one, Tensor) for one in found) else []
