"""Observes weights that something other than their optimizer writes: between its steps, and before the first one."""

from __future__ import annotations

import statistics
import weakref
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.memory import Glimpse
from unstuck.capture.measure.tensors import is_dense, is_plain, may_measure, reading, sample
from unstuck.capture.objects import parameters_of
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


class _Part(NamedTuple):
    """Part of one weight of an optimizer."""

    group: int
    place: int
    pointer: int
    """Where it was. Whoever keeps a parameter itself, or a weak reference to it, keeps it from being swapped."""
    glimpse: Glimpse

    def is_current(self, optimizer: Optimizer) -> bool:
        """Is it still where it was, and not replaced by another?"""
        try:
            now: int = optimizer.param_groups[self.group]["params"][self.place].data_ptr()
        except (IndexError, RuntimeError):
            return False
        return now == self.pointer


class _Followed:
    """Some weights of one optimizer, as its last step left them."""

    def __init__(self, optimizer: Optimizer) -> None:
        every = [
            (group, place, p)
            for group, held in enumerate(optimizer.param_groups)
            for place, p in enumerate(held["params"])
            if is_plain(p) and p.is_cpu and is_dense(p) and p.numel()
        ]
        largest = sorted(every, key=lambda each: -each[2].numel())[:_TENSORS]
        self.parts = [_Part(group, place, p.data_ptr(), Glimpse(p, _ELEMENTS)) for group, place, p in largest]
        self.after = self.read()
        self.since = self.numbers(self.after)
        """As they were after the last write."""
        self.steps: list[int] = []
        self.undone: list[float] = []
        self.by_loading = 0
        self.recorded = 0

    def is_current(self, optimizer: Optimizer) -> bool:
        """Are they still where they were?"""
        return all(part.is_current(optimizer) for part in self.parts)

    def read(self) -> list[bytes]:
        """As they are now. Empty where there is nothing to read."""
        return [part.glimpse.read() for part in self.parts]

    def numbers(self, read: list[bytes]) -> Tensor:
        """All that was read, in a row."""
        parts = zip(self.parts, read, strict=True)
        return torch.cat([torch.zeros(0).double(), *(part.glimpse.numbers(each) for part, each in parts)])


class _Load(NamedTuple):
    module: weakref.ref[nn.Module]
    place: Place | None
    weights: dict[str, tuple[weakref.ref[nn.Module], int, Tensor]]
    """By the names of the parameters: their layers, their identities and parts of what they were. A weak reference to a
    parameter itself would keep `torch.utils.swap_tensors` from converting the model."""


class WrittenWeights:
    """Follows weights from step to step: after each step some are copied, and before the next backward compared."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._followed: weakref.WeakKeyDictionary[Optimizer, _Followed] = weakref.WeakKeyDictionary()
        self._newest: tuple[weakref.ref[Optimizer], _Followed] | None = None
        """The optimizer that stepped last, until the next backward."""
        self._last: tuple[weakref.ref[Optimizer], _Followed] | None = None
        """The same, until another one steps."""
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
            largest = [name for name in plain[:_LOADED] if own[name].numel() > 1]
            layers = {name: module.get_submodule(name.rpartition(".")[0]) for name in largest}
            weights = {name: (weakref.ref(layers[name]), id(own[name]), _sample(own[name])) for name in largest}
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
            # A layer that was put in the place of another one, such as a new head, is meant to be another.
            own = []
            for name, parameter in module.named_parameters():
                layer, identity, value = load.weights.get(name, (None, 0, None))
                is_same = layer is not None and layer() is module.get_submodule(name.rpartition(".")[0])
                if is_same and identity == id(parameter) and value is not None:
                    own.append((parameter, value))
            if not any(id(p) in held for p, _ in own) or 2 * len(own) < len(load.weights):
                continue
            with reading():
                self._compare_loaded(optimizer, load, [(_sample(p), value) for p, value in own])

    def _compare_loaded(self, optimizer: Optimizer, load: _Load, pairs: list[tuple[Tensor, Tensor]]) -> None:
        changed = [(now, then) for now, then in pairs if not torch.equal(now, then)]
        # The last layer alone may have been drawn again on purpose.
        if len(changed) < len(pairs) - (len(pairs) > 2):
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
        self._has_loaded = False
        newest = self._last
        if newest is None or newest[0]() is not optimizer or self._watch.window.sampled:
            newest = self._last = self._follow(optimizer)
        if newest is not None:
            newest[1].after = newest[1].read()
        self._newest = newest

    def _follow(self, optimizer: Optimizer) -> tuple[weakref.ref[Optimizer], _Followed] | None:
        """What is known of its weights; known from now on, if they are new or elsewhere than they were."""
        followed = self._followed.get(optimizer)
        if followed is None or not followed.is_current(optimizer):
            if not may_measure() or (followed is None and len(self._followed) >= _MOST_OPTIMIZERS):
                return None
            with reading():
                followed = self._followed[optimizer] = _Followed(optimizer)
        return weakref.ref(optimizer), followed

    def look(self) -> None:
        """A backward begins: are the weights what the last step left?"""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        optimizer, followed = newest[0](), newest[1]
        read = followed.read()
        if read == followed.after or optimizer is None or not followed.is_current(optimizer):
            return
        if not all(read) or not all(followed.after) or not may_measure():
            return
        with reading():
            after, now = followed.numbers(followed.after), followed.numbers(read)
            way, length = after - followed.since, float((after - followed.since).norm())
            if length > 0 and not torch.equal(after, now):
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


def _sample(tensor: Tensor) -> Tensor:
    return sample(tensor.detach()).reshape(-1)[:_ELEMENTS].clone()
