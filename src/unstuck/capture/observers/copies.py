"""Observes copies of networks: target networks and running averages, which are asked without gradients."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.measure.tensors import is_plain, may_measure, reading
from unstuck.capture.objects import Model, parameters_of
from unstuck.capture.observers.data import arguments_of, fingerprint_of
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import CopySeen, Place

_MOST_COPIES = 8
_FIRST_REPORT = 10
_LOOKED_AT = 4
"""Parameters of a network that stand for all of them: the first and the last ones."""
_ELEMENTS = 4096
_ROWS = 8
"""Examples of a batch that stand for all of it."""


class _Copy:
    """A network that was asked without gradients, and the one of the same shape that learns."""

    def __init__(self, root: nn.Module, source: Model, place: Place | None, loaded: bool) -> None:
        self.root = weakref.ref(root)
        self.source = source.label
        self.module = weakref.ref(source.module) if source.module is not None else None
        self.place = place
        self.loaded = loaded
        self.windows = self.same_inputs = self.changes = self.moves = 0
        self.own: tuple[float, ...] = ()
        self.of_source: tuple[float, ...] = ()
        self.next_report = _FIRST_REPORT


class Copies(Observer):
    """Follows networks that are asked without gradients in the same window in which a network of the same class and
    shapes learns: how often they changed, and whether both were given the same inputs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._learning: dict[str, tuple[Model, tuple[float, ...]]] = {}
        self._asked: dict[str, tuple[Model, Place | None, tuple[float, ...]]] = {}
        """Models that were called in this window, with marks of what they were given first."""
        self._copies: dict[str, _Copy | None] = {}
        self._note = watch.guard.protect("copies of networks", self._note_call)
        self._compare = watch.guard.protect("copies of networks", self._compared)

    def model_ran(self, module: nn.Module, model: Model, place: Place | None, arguments: tuple[Any, ...]) -> None:
        """A model was called in a sampled window."""
        recording = torch.is_grad_enabled()
        if model.label not in (self._learning if recording else self._asked) and may_measure():
            self._note(module, model, place, arguments, recording)

    def window_began(self, ended: Ended) -> None:
        """A window ended: were networks of one shape called in both ways?"""
        if ended.recorded:
            if self._asked and self._learning and ended.optimizer is not None and may_measure():
                self._compare()
            self._asked.clear()
            self._learning.clear()

    def finish(self) -> None:
        """The run ended."""
        for label, copy in self._copies.items():
            if copy is not None:
                # Few of the later steps are watched: what happened between them shows now.
                root = copy.root()
                copy.changes += bool(copy.own) and root is not None and _weights(root) != copy.own
                self._tell(label, copy)

    def _note_call(
        self, module: nn.Module, model: Model, place: Place | None, arguments: tuple[Any, ...], recording: bool
    ) -> None:
        marks: tuple[float, ...] = ()
        if any(self._copies.values()):
            with reading():
                given = [(name, tensor) for name, tensor in arguments_of(module, arguments) if tensor.is_cpu]
                marks = fingerprint_of([(name, tensor[:_ROWS]) for name, tensor in given[:2] if tensor.dim()])
        if recording:
            self._learning[model.label] = model, marks
        else:
            self._asked[model.label] = model, place, marks

    def _compared(self) -> None:
        for label, (model, place, marks) in self._asked.items():
            if label not in self._copies and len(self._copies) < _MOST_COPIES:
                self._copies[label] = self._met(model, place)
            copy = self._copies.get(label)
            if copy is None or copy.source not in self._learning or not marks:
                continue
            copy.windows += 1
            copy.same_inputs += marks == self._learning[copy.source][1]
            now, then = _weights(model.module), _weights(copy.module() if copy.module is not None else None)
            copy.changes += bool(copy.own) and now != copy.own
            copy.moves += bool(copy.of_source) and then != copy.of_source
            copy.own, copy.of_source = now, then
            if copy.windows >= copy.next_report:
                copy.next_report = 2 * copy.windows
                self._tell(label, copy)

    def _met(self, model: Model, place: Place | None) -> _Copy | None:
        """None if it is not a copy of a network that learns."""
        root = model.module
        held = {
            id(parameter) for optimizer, _ in self._watch.objects.optimizers() for parameter in parameters_of(optimizer)
        }
        own = model.parameters()
        if root is None or not own or any(id(parameter) in held for _, parameter in own):
            return None
        shapes = [(name, parameter.shape) for name, parameter in own]
        for source, _ in self._learning.values():
            theirs = source.parameters()
            alike = type(source.module) is type(root) and [(name, p.shape) for name, p in theirs] == shapes
            if alike and any(id(parameter) in held for _, parameter in theirs):
                objects = self._watch.objects
                # One that begins as a copy of the other was not given a checkpoint.
                first = next(iter(theirs))[1].data_ptr()
                loaded = objects.is_loaded(root) and objects.loaded_from.get(root) != first
                return _Copy(root, source, place, loaded)
        return None

    def _tell(self, label: str, copy: _Copy) -> None:
        self._watch.tell(
            CopySeen(
                step=self._watch.window.steps,
                place=copy.place,
                model=label,
                source=copy.source,
                windows=copy.windows,
                changes=copy.changes,
                moves=copy.moves,
                same_inputs=copy.same_inputs,
                loaded=copy.loaded,
            )
        )


def _weights(root: nn.Module | None) -> tuple[float, ...]:
    """Numbers that change with the weights."""
    if root is None:
        return ()
    every = [parameter.detach() for parameter in root.parameters() if is_plain(parameter) and parameter.numel()]
    few = every if len(every) <= _LOOKED_AT else [*every[: _LOOKED_AT // 2], *every[-_LOOKED_AT // 2 :]]
    with reading():
        return tuple(number for tensor in few for number in _sums(tensor.reshape(-1)[:_ELEMENTS].double()))


def _sums(values: Tensor) -> tuple[float, float]:
    return float(values.sum()), float(values.square().sum())
