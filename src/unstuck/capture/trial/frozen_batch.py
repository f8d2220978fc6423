"""Freezes the batch of a loop: whatever the loop draws, it gets what it drew in its second step.

Three ways at once, since loops differ: a DataLoader hands out its first batch, random generators are set back after
every step, and data that the script makes into tensors or slices itself are those of the same line one step ago.
What still reaches the model and the losses is replaced there. How much of it had to be is noted.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from unstuck.capture.observers.losses import NAMES as LOSSES
from unstuck.capture.places import Places
from unstuck.capture.trial.lab import Arguments, Lab, copied, is_data, map_tensors
from unstuck.capture.trial.loss_floors import Goal, equal_rows, goal, value_of

UNKNOWN_LENGTH = 50
"""Batches in a pass over a loader that does not know its length."""
SAVED_STEP = 1
"""The step whose data are used, counted from 0: the first may contain what happens only once."""
SOURCES = ("tensor", "as_tensor", "from_numpy", "stack", "index_select")


class FrozenBatch:
    """The data of one step, again and again."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._places = Places()
        self._firsts: dict[tuple[int, Any], tuple[Any, Any]] = {}
        self._saved: dict[tuple[Any, ...], Any] = {}
        self._visits: Counter[Any] = Counter()
        self._state: tuple[Any, ...] | None = None
        self._calls = self._replaced = 0
        self._rows: Tensor | None = None
        self._are_measured = False
        self._goals: list[Goal] = []
        self._values: list[float | None] = []
        self._turn = 0
        """Steps that have ended. A window in which nothing was computed is none: a second optimizer used the same
        backward."""
        self._is_called = False
        self._saved_window = SAVED_STEP
        self._shapes: dict[tuple[int, Any], torch.Size] = {}
        self._sources_vary = False
        """Does one line make tensors of several shapes in one step, such as sentences of a batch? Then those of another
        step would not fit where they go, and only what models and losses get is replaced."""
        lab.wrap(DataLoader, "__iter__", self._replay)
        for name in SOURCES:
            lab.wrap(torch, name, self._again)
        lab.wrap(Tensor, "__getitem__", self._again)
        lab.wrap(Tensor, "index_select", self._again)
        lab.wrap(Tensor, "backward", self._computing)
        lab.change_calls(self._same_call)
        lab.change_losses(self._same_loss_module)
        for name in LOSSES:
            lab.wrap(F, name, functools.partial(self._same_loss, name))
        lab.when_step_ends.append(self._step_ended)
        self._note()

    def _replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(loader: DataLoader[Any]) -> Iterator[Any]:
            key = (id(loader.dataset), loader.batch_size)
            if key not in self._firsts:
                for batch in original(loader):
                    self._firsts[key] = (
                        loader.dataset,
                        copied(batch),
                    )  # the data set, so that its id stays unique
                    break
                else:
                    return
            self._lab.notes["loader"] = True
            before = -1
            while before < self._lab.steps:  # a pass in which steps were taken goes on until the run is ended
                before = self._lab.steps
                for _ in range(_length(loader)):
                    yield copied(self._firsts[key][1])

        return replay

    def _computing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._is_called = True
            return original(*args, **kwargs)

        return backward

    def _again(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def again(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            frame = sys._getframe(1)
            if not is_data(result) or not torch.is_grad_enabled() or not self._places.is_users(frame.f_code):
                return result
            site = (frame.f_code, frame.f_lasti)
            if self._turn <= SAVED_STEP and self._shapes.setdefault((self._turn, site), result.shape) != result.shape:
                self._sources_vary = True
            if self._sources_vary:
                return result
            return self._of_saved_step(site, result, lambda saved: saved.clone())

        return again

    def _of_saved_step(self, site: tuple[Any, ...], value: Any, copy: Callable[[Any], Any]) -> Any:
        """What the same site, reached as often in its step, had in the saved step."""
        if self._turn < SAVED_STEP:
            return value
        key = (*site, self._visits[site])
        self._visits[site] += 1
        if self._turn == SAVED_STEP:
            self._saved[key] = copy(value)
            return value
        if self._lab.inputs_differ and self._lab.is_inside_module:
            return value
        saved = self._saved.get(key)
        return copy(saved) if saved is not None and _alike(saved, value) else value

    def _same_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if not torch.is_grad_enabled():
            return args, kwargs
        self._is_called = True
        first_args, first_kwargs = self._saved_arguments(("call", id(module)), (args, kwargs))
        if self._turn == SAVED_STEP:
            data: list[Tensor] = []
            map_tensors((first_args, first_kwargs), lambda tensor: data.append(tensor) if is_data(tensor) else None)
            self._rows = equal_rows(data)
            # Few ids are often equal, as in a bigram model, and what follows them differs by nature.
            self._are_measured = any(tensor.is_floating_point() for tensor in data)
        return tuple(first_args), dict(first_kwargs)

    def _same_loss_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """A loss of the script's own is often a module, called with what a model computed."""
        learned: list[Tensor] = []
        map_tensors((args, kwargs), lambda tensor: None if is_data(tensor) else learned.append(tensor))
        if not learned or not torch.is_grad_enabled():
            return args, kwargs
        first_args, first_kwargs = self._saved_arguments(("loss", type(module)), (args, kwargs))
        return tuple(first_args), dict(first_kwargs)

    def _same_loss(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return original(*args, **kwargs)
            args, kwargs = self._saved_arguments(("loss", name, *self._site()), (args, kwargs))
            result = original(*args, **kwargs)
            self._note_loss(name, args, kwargs, result)
            return result

        return loss

    def _note_loss(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """The losses of this step; in the saved step also how low they can go."""
        self._is_called = True
        if self._turn == SAVED_STEP:
            self._saved_window = self._lab.steps
            found = goal(name, args, kwargs, result, self._rows)
            if found is not None:
                self._goals.append(found)
        if isinstance(result, Tensor) and result.requires_grad:
            self._values.append(value_of(result))

    def _site(self) -> tuple[Any, ...]:
        """The user's line that led here; between it and us lie torch and those who watch the run."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not self._places.is_users(frame.f_code):
            frame = frame.f_back
        return () if frame is None else (frame.f_code, frame.f_lasti)

    def _saved_arguments(self, site: tuple[Any, ...], given: Any) -> Any:
        """The arguments, with the data among them replaced by those of the saved step."""
        data: list[Tensor] = []
        map_tensors(given, lambda tensor: data.append(tensor) if is_data(tensor) else None)
        saved = self._of_saved_step(site, data, lambda tensors: [tensor.detach().clone() for tensor in tensors])
        if saved is data or self._turn <= SAVED_STEP:
            return given
        self._calls += 1
        same = len(saved) == len(data) and all(_equal(one, other) for one, other in zip(saved, data, strict=True))
        self._replaced += not same
        rest = iter(saved)
        self._note()
        return map_tensors(given, lambda tensor: next(rest) if is_data(tensor) else tensor)

    def _note(self) -> None:
        self._lab.notes["frozen"] = {"calls": self._calls, "replaced": self._replaced}

    def _step_ended(self) -> None:
        if not self._is_called:
            return
        self._is_called = False
        self._turn += 1
        self._visits.clear()
        self._lab.notes["goals"] = {
            "first_step": self._saved_window,
            "first": self._goals,
            "measured": self._are_measured,
            "last_step": self._lab.steps - 1,
            "last": self._values,
        }
        self._values = []
        if self._turn == SAVED_STEP:
            self._state = _random_state()
        elif self._state is not None:
            _set_random_state(self._state)


def _length(loader: DataLoader[Any]) -> int:
    try:
        return len(loader)
    except TypeError:
        return UNKNOWN_LENGTH


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
    return bool(one.dtype == other.dtype and one.device == other.device and one.dim() == other.dim())


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    return random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None, cuda


def _set_random_state(state: tuple[Any, ...]) -> None:
    python, own, numpys, cuda = state
    random.setstate(python)
    torch.set_rng_state(own)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
