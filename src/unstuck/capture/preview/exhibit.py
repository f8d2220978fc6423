"""Keeps, in the process of a trial, the data as the model received it, its first filters and what it predicts."""

from __future__ import annotations

import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.guard import Guard
from unstuck.capture.measure.tensors import may_measure, reading
from unstuck.capture.observers.losses import NAMES as LOSSES
from unstuck.capture.preview.predicting import CLASS_LOSSES, MOST_EXAMPLES, Compared
from unstuck.capture.preview.probing import Probe, can_be_probed
from unstuck.capture.preview.showing import as_pictures, filters, first_layer, labelled, shown
from unstuck.capture.preview.vocabulary import class_names
from unstuck.capture.trial.lab import Arguments, Lab, copied, is_data
from unstuck.events.preview import FILE, FirstLayer, Table, TargetShown

MOST_CALLS = 3
"""Calls of models that are kept until it is known which one trains."""
MOST_INPUTS = 6
MOST_COPIED = 1 << 26
"""Elements of a call; one with more is not kept."""
COUNTED = 50
"""Calls of losses whose classes are counted."""
MOST_CLASSES = 1000
BINARY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


class _Call(msgspec.Struct):
    """A model was called in training."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    probe: Probe | None = None

    @property
    def size(self) -> int:
        return next((len(value) for _, value in named_tensors(self.module, self.args, self.kwargs)), 0)


class Exhibit:
    """Looks on, changes nothing, and writes `exhibit.json` into a folder anew after each look."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._path = folder / FILE
        guard = Guard(lambda text: lab.notes.update(exhibit=text))
        self._calls: list[_Call] = []
        self._chosen: _Call | None = None
        self._target: tuple[str, Tensor, tuple[int, ...]] | None = None
        """Of the first loss, and the shape of what it was compared with."""
        self._counts: Counter[str] = Counter()
        self._counted = 0
        self._still: Table | None = None
        self._layer: tuple[str, nn.Module, tuple[int, int, int]] | None = None
        self._layer_start: tuple[Any, Tensor] | None = None
        see = guard.protect("the data", self._see)
        compared = guard.protect("the targets", self._compared)

        def seen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            if self._chosen is None and self._lab.steps == 0:
                see(module, args, kwargs)
            return args, kwargs

        lab.change_calls(seen)
        for name in LOSSES:
            lab.wrap(F, name, functools.partial(_overheard, name, compared))
        lab.when_step_ends.append(guard.protect("the predictions", self._step_ended))

    def _see(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a model is called for the first times."""
        if not torch.is_grad_enabled() or len(self._calls) >= MOST_CALLS or not may_measure():
            return
        given = [tensor for _, tensor in named_tensors(module, args, kwargs)]
        if not given or sum(tensor.numel() for tensor in given) > MOST_COPIED:
            return
        with reading():
            kept_args, kept_kwargs = copied((args, kwargs))
        call = _Call(module, kept_args, kept_kwargs)
        if can_be_probed(module):
            call.probe = Probe(self._lab, module, kept_args, kept_kwargs)
            call.probe.look(0)
        if self._layer is None:
            self._keep_first_layer(call)
        self._calls.append(call)

    def _keep_first_layer(self, call: _Call) -> None:
        """Before the first step has changed it."""
        for _, tensor in named_tensors(call.module, call.args, call.kwargs):
            pictures = as_pictures(tensor)
            layer = first_layer(call.module, tuple(pictures.shape[1:])) if pictures is not None else None
            if layer is not None and can_be_probed(layer[1]):
                self._layer = layer
                weight = _weight(layer[1])
                self._layer_start = (filters(weight, layer[2], 0), weight.detach().clone())
                return

    def _compared(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A loss is called: the first time, this tells which call of a model trains."""
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        source = kwargs.get("input", args[0] if args else None)
        if self._counted >= COUNTED or not isinstance(target, Tensor) or not torch.is_grad_enabled():
            return
        if not may_measure() or target.requires_grad or not target.numel():
            return
        with reading():
            if self._target is None and self._calls:
                shape = tuple(source.shape) if isinstance(source, Tensor) else ()
                self._target = (name, target.detach().clone(), shape)
                size = len(target) if target.dim() else 0
                self._chosen = next((call for call in self._calls if call.size == size), self._calls[-1])
            if self._target is not None and name == self._target[0]:
                self._count(name, target, kwargs.get("ignore_index", -100))

    def _count(self, name: str, target: Tensor, ignored: int) -> None:
        self._counted += 1
        whole = not target.is_floating_point()
        if name in CLASS_LOSSES and whole:
            values, counts = torch.unique(target[target != ignored], return_counts=True)
        elif name in BINARY_LOSSES and bool(((target == 0) | (target == 1)).all()):
            values, counts = torch.unique(target, return_counts=True)
        else:
            return
        for value, count in zip(values.tolist()[:MOST_CLASSES], counts.tolist(), strict=False):
            self._counts[str(int(value))] += count

    def _step_ended(self) -> None:
        """Between two steps of the program."""
        if self._chosen is None and self._calls:
            self._chosen = self._calls[-1]
        call = self._chosen
        if call is None:
            return
        first = self._still is None
        if self._still is None:
            with reading():
                self._still = self._seen_once(call)
            self._calls.clear()
        looked = call.probe is not None and call.probe.look(self._lab.steps)
        if first or looked or self._lab.steps == COUNTED:
            self._write(call)

    def _seen_once(self, call: _Call) -> Table:
        """What does not change any more."""
        names = class_names()
        words = self._target_words(call.size, names)
        inputs = [
            (name, tensor)
            for name, tensor in named_tensors(call.module, call.args, call.kwargs)
            if self._target is None or not _same_classes(tensor, self._target[1])
        ]
        return Table(
            model=type(call.module).__name__,
            tensors=tuple(labelled(shown(name, tensor), words) for name, tensor in inputs)[:MOST_INPUTS],
            class_names=names,
        )

    def _target_words(self, size: int, names: tuple[str, ...]) -> list[str]:
        if self._target is None:
            return []
        target = self._target[1]
        if target.dim() == 0 or len(target) != size or target.numel() != size:
            return []
        values = target.reshape(-1)[:MOST_EXAMPLES].tolist()
        if target.is_floating_point():
            return [f"{value:.4g}" for value in values]
        return [names[value] if 0 <= value < len(names) else str(int(value)) for value in values]

    def _write(self, call: _Call) -> None:
        assert self._still is not None
        dynamics = call.probe.dynamics(self._compared_with()) if call.probe is not None else None
        table = msgspec.structs.replace(
            self._still,
            target=self._target_shown(),
            first_layer=self._first_layer(),
            dynamics=dynamics,
            notes=(call.probe.trouble,) if call.probe is not None and call.probe.trouble else (),
        )
        beside = self._path.with_suffix(".part")
        beside.write_bytes(msgspec.json.encode(table))
        os.replace(beside, self._path)

    def _compared_with(self) -> Compared | None:
        if self._target is None:
            return None
        name, target, source = self._target
        return Compared(name, target.reshape(-1).cpu(), tuple(target.shape), source)

    def _target_shown(self) -> TargetShown | None:
        if self._target is None:
            return None
        name, target, _ = self._target
        with reading():
            values = target.double()
            values = values[torch.isfinite(values)]
            counted = dict(sorted(self._counts.items(), key=lambda item: int(item[0])))
            return TargetShown(
                loss=name,
                dtype=str(target.dtype).removeprefix("torch."),
                shape=tuple(target.shape),
                low=float(values.min()) if values.numel() else None,
                high=float(values.max()) if values.numel() else None,
                mean=float(values.mean()) if values.numel() else None,
                counts=counted,
                batches=self._counted,
            )

    def _first_layer(self) -> FirstLayer | None:
        if self._layer is None or self._layer_start is None:
            return None
        name, module, shape = self._layer
        start, before = self._layer_start
        with reading():
            weight = _weight(module)
            length = float(before.norm())
            moved = float((weight - before).norm()) / length if length else None
            end = filters(weight, shape, self._lab.steps)
        return FirstLayer(name=name, kind=type(module).__name__, count=len(weight), start=start, end=end, moved=moved)


def named_tensors(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The data among the arguments of a call, by the names that `forward` has for them."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        names = []
    given = [(names[i] if i < len(names) else f"argument {i + 1}", value) for i, value in enumerate(args)]
    found = [item for name, value in (*given, *kwargs.items()) for item in _inside(name, value)]
    return [(name, tensor) for name, tensor in found if is_data(tensor) and tensor.dim() > 0]


def _inside(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif hasattr(value, "keys") and hasattr(value, "__getitem__"):
        for key in list(value.keys())[:MOST_INPUTS]:
            yield from _inside(str(key), value[key])
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value[:MOST_INPUTS]):
            yield from _inside(f"{name}[{index}]" if len(value) > 1 else name, item)


def _same_classes(given: Tensor, target: Tensor) -> bool:
    """Is it the target itself, given to a model that computes its loss?"""
    return given.dim() == 1 and not given.is_floating_point() and torch.equal(given, target)


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _overheard(name: str, hear: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        hear(name, args, kwargs)
        return original(*args, **kwargs)

    return loss
