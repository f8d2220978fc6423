"""Observes weights that something other than their optimizer writes: between its steps, and before the first one."""

from __future__ import annotations

import statistics
import weakref
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.tensors import is_plain, may_measure, reading, sample
from unstuck.capture.objects import parameters_of
from unstuck.capture.torch_hooks.internals import foreach_copy
from unstuck.capture.window import Watch
from unstuck.events import LoadedLost, Place, WeightsWritten

_TENSORS = 2
_ELEMENTS = 256
_MOST_OPTIMIZERS = 4
_FEWEST = 3
"""Writes before which nothing is recorded."""
_MOST_STEPS = 8
_MOST_LOADS = 16
_LOADED = 6
"""Tensors of a loaded state that are remembered."""
_CHANGED = 0.3
"""Weights that were loaded and are trained agree less than this: they have nothing to do with each other."""


class _Followed:
    """Some weights of one optimizer, as its last step left them."""

    def __init__(self, optimizer: Optimizer) -> None:
        tensors = sorted((p for p in parameters_of(optimizer) if is_plain(p) and p.is_cpu), key=lambda p: -p.numel())
        self.tensors = tensors[:_TENSORS]
        self.pointers = [tensor.data_ptr() for tensor in self.tensors]
        self.views = [sample(tensor.detach()).reshape(-1)[:_ELEMENTS] for tensor in self.tensors]
        self.after = [view.clone() for view in self.views]
        self.since = torch.cat(self.after).double()
        """As they were after the last write."""
        self.steps: list[int] = []
        self.undone: list[float] = []
        self.by_loading = 0
        self.recorded = 0

    def is_current(self) -> bool:
        """Are they still where they were, and not replaced by others?"""
        return self.pointers == [tensor.data_ptr() for tensor in self.tensors]


class _Load(NamedTuple):
    module: weakref.ref[nn.Module]
    place: Place | None
    weights: list[tuple[weakref.ref[Tensor], Tensor]]


class WrittenWeights:
    """Follows weights from step to step: after each step some are copied, and before the next backward compared."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._followed: weakref.WeakKeyDictionary[Optimizer, _Followed] = weakref.WeakKeyDictionary()
        self._newest: _Followed | None = None
        self._loads: list[_Load] = []
        self._has_loaded = False

    def loaded(self, module: nn.Module, place: Place | None) -> None:
        """`load_state_dict` of a model returned."""
        self._has_loaded = True
        if not may_measure():
            return
        # Biases and norms are often left at their defaults, loaded or not.
        own: list[Tensor] = [p for p in module.parameters() if is_plain(p) and p.is_cpu and p.dim() > 1]
        plain = sorted(own, key=lambda p: -p.numel())
        with reading():
            weights = [(weakref.ref(p), _part(p)) for p in plain[:_LOADED] if p.numel() > 1]
        others = [load for load in self._loads if load.module() not in (None, module)]
        self._loads = [*others[-_MOST_LOADS:], _Load(weakref.ref(module), place, weights)]

    def first_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step for the first time."""
        if not self._loads or not may_measure():
            return
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for load in self._loads:
            known = [(p, value) for reference, value in load.weights if (p := reference()) is not None]
            own = [(p, value) for p, value in known if id(p) in held]
            module = load.module()
            if not own or module is None or self._watch.objects.was_trained(module):
                continue
            with reading():
                self._compare_loaded(optimizer, load, [(_part(p), value) for p, value in own])

    def _compare_loaded(self, optimizer: Optimizer, load: _Load, pairs: list[tuple[Tensor, Tensor]]) -> None:
        changed = [(now, then) for now, then in pairs if not torch.equal(now, then)]
        if len(changed) < max(1, len(pairs) - 1):
            return
        vary = [(now, then) for now, then in changed if float(now.std()) > 0 and float(then.std()) > 0]
        alike = [float(torch.corrcoef(torch.stack(pair).double())[0, 1]) for pair in vary]
        if alike and statistics.median(alike) > _CHANGED:
            return
        module = load.module()
        self._watch.tell(
            LoadedLost(
                step=self._watch.window.steps,
                place=load.place,
                optimizer=self._watch.objects.optimizer(optimizer),
                model=type(module).__name__,
                tensors=len(pairs),
                changed=len(changed),
                alike=statistics.median(alike) if alike else None,
            )
        )

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        if not may_measure():
            return
        followed = self._followed.get(optimizer)
        with reading():
            if followed is None or not followed.is_current():
                self._newest = None
                if followed is not None or len(self._followed) < _MOST_OPTIMIZERS:
                    followed = _Followed(optimizer)
                    if followed.tensors:
                        self._followed[optimizer] = self._newest = followed
            else:
                foreach_copy(followed.after, followed.views)
                self._newest = followed
        self._has_loaded = False

    def look(self) -> None:
        """A backward begins: are the weights what the last step left?"""
        followed, self._newest = self._newest, None
        if followed is None or not may_measure():
            return
        with reading():
            if all(map(torch.equal, followed.views, followed.after)) or not followed.is_current():
                return
            after, now = torch.cat(followed.after).double(), torch.cat(followed.views).double()
            way, length = after - followed.since, float((after - followed.since).norm())
            if length > 0:
                followed.steps.append(self._watch.window.steps)
                followed.undone.append(float(way @ (after - now)) / length**2)
                followed.by_loading += self._has_loaded
            followed.since = now
        if len(followed.steps) >= max(_FEWEST, 2 * followed.recorded):
            followed.recorded = len(followed.steps)
            self._tell(followed)

    def finish(self) -> None:
        """The run ended."""
        for followed in self._followed.values():
            if len(followed.steps) > max(_FEWEST - 1, followed.recorded):
                self._tell(followed)

    def _tell(self, followed: _Followed) -> None:
        label = next(self._watch.objects.optimizer(key) for key, each in self._followed.items() if each is followed)
        gaps = [after - before for before, after in zip(followed.steps, followed.steps[1:], strict=False)]
        self._watch.tell(
            WeightsWritten(
                step=self._watch.window.steps,
                optimizer=label,
                times=len(followed.steps),
                gap=round(statistics.median(gaps)),
                after=tuple(followed.steps[-_MOST_STEPS:]),
                undone=float(f"{statistics.median(followed.undone):.4g}"),
                by_loading=followed.by_loading,
            )
        )


def _part(tensor: Tensor) -> Tensor:
    return sample(tensor.detach()).reshape(-1)[:_ELEMENTS].clone()
