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
        every = list(parameters_of(optimizer))
        plain = [number for number, p in enumerate(every) if is_plain(p) and p.is_cpu]
        # By number: whoever keeps a parameter, or a weak reference to it, keeps it from being swapped.
        self.numbers = sorted(plain, key=lambda number: -every[number].numel())[:_TENSORS]
        self.pointers = [every[number].data_ptr() for number in self.numbers]
        self.views = [sample(every[number].detach()).reshape(-1)[:_ELEMENTS] for number in self.numbers]
        self.after = [view.clone() for view in self.views]
        self.since = torch.cat(self.after).double() if self.after else torch.zeros(0)
        """As they were after the last write."""
        self.steps: list[int] = []
        self.undone: list[float] = []
        self.by_loading = 0
        self.recorded = 0

    def is_current(self, optimizer: Optimizer) -> bool:
        """Are they still where they were, and not replaced by others?"""
        every = list(parameters_of(optimizer))
        if max(self.numbers, default=0) >= len(every) or not all(is_plain(every[number]) for number in self.numbers):
            return False
        return self.pointers == [every[number].data_ptr() for number in self.numbers]


class _Load(NamedTuple):
    module: weakref.ref[nn.Module]
    place: Place | None
    weights: dict[str, Tensor]
    """Parts of them, by the names of the parameters."""


class WrittenWeights:
    """Follows weights from step to step: after each step some are copied, and before the next backward compared."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._followed: weakref.WeakKeyDictionary[Optimizer, _Followed] = weakref.WeakKeyDictionary()
        self._newest: weakref.ref[Optimizer] | None = None
        """The one that stepped last."""
        self._loads: list[_Load] = []
        self._has_loaded = False

    def loaded(self, module: nn.Module, place: Place | None) -> None:
        """`load_state_dict` of a model returned."""
        self._has_loaded = True
        if not may_measure():
            return
        # Biases and norms are often left at their defaults, loaded or not.
        own = {name: p for name, p in module.named_parameters() if is_plain(p) and p.is_cpu and p.dim() > 1}
        plain = sorted(own, key=lambda name: -own[name].numel())
        with reading():
            weights = {name: _part(own[name]) for name in plain[:_LOADED] if own[name].numel() > 1}
        others = [load for load in self._loads if load.module() not in (None, module)]
        self._loads = [*others[-_MOST_LOADS:], _Load(weakref.ref(module), place, weights)]

    def first_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step for the first time."""
        if not self._loads or not may_measure():
            return
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        for load in self._loads:
            module = load.module()
            if module is None or self._watch.objects.was_trained(module):
                continue
            there = {name: p for name, p in module.named_parameters() if id(p) in held}
            own = [(there[name], value) for name, value in load.weights.items() if name in there]
            if not own:
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
            if followed is None or not followed.is_current(optimizer):
                self._newest = None
                if followed is not None or len(self._followed) < _MOST_OPTIMIZERS:
                    followed = _Followed(optimizer)
                    if followed.views:
                        self._followed[optimizer] = followed
                        self._newest = weakref.ref(optimizer)
            else:
                foreach_copy(followed.after, followed.views)
                self._newest = weakref.ref(optimizer)
        self._has_loaded = False

    def look(self) -> None:
        """A backward begins: are the weights what the last step left?"""
        optimizer, self._newest = self._newest() if self._newest is not None else None, None
        followed = self._followed.get(optimizer) if optimizer is not None else None
        if followed is None or optimizer is None or not may_measure():
            return
        with reading():
            if all(map(torch.equal, followed.views, followed.after)) or not followed.is_current(optimizer):
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
