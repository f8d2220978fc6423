"""Observes calls of losses of the user's own: numbers about what each argument is."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Watch
from unstuck.events import InputFact, LossInputs

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LARGEST_SAMPLE = 4096
MOST_CALLS = 4
"""Of one loss in one window."""
_CLOSE_READS = 5
_THEN_EVERY = 100
"""On a device, where reading means waiting for it."""
_LONGEST_TEXT = 80


def watch_loss(patches: Patches, watch: Watch, owner: Any, name: str) -> str:
    """Watch `owner.name`, a function or a class. Returns a sentence if it cannot be watched."""
    loss = owner.__dict__.get(name)
    if isinstance(loss, types.FunctionType):
        observer = LossObserver(watch, owner.__name__, name, inspect.signature(loss))
        patches.around(owner, name, observer.before, observer.after)
        return ""
    method = _method_of(loss) if isinstance(loss, type) else None
    if method is None:
        there = "is not there" if loss is None else f"is {type(loss).__name__}, no function and no class with a forward"
        return f"{owner.__name__}:{name} {there}, so what it is given was not recorded."
    kind, attribute = method
    observer = LossObserver(watch, owner.__name__, name, inspect.signature(kind.__dict__[attribute]), of_class=loss)
    patches.around(kind, attribute, observer.before, observer.after)
    return ""


def _method_of(loss: type) -> tuple[type, str] | None:
    """The class, itself or one it inherits from, and the method that computes the loss."""
    for attribute in ("forward", "__call__"):
        for kind in loss.__mro__:
            if kind is torch.nn.Module:
                break
            if isinstance(kind.__dict__.get(attribute), types.FunctionType):
                return kind, attribute
    return None


class LossObserver:
    """Records one loss, a few times in each sampled window."""

    def __init__(
        self, watch: Watch, module: str, name: str, signature: inspect.Signature, of_class: type | None = None
    ) -> None:
        self._watch = watch
        self._module, self._name = module, name
        self._signature = signature
        self._class = of_class
        self._window, self._in_window, self._calls = -1, 0, 0

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[InputFact, ...] | None:
        """Look at the arguments before the loss can change them."""
        watch = self._watch
        if not watch.window.sampled or not torch.is_grad_enabled() or not watch.is_listening() or not may_measure():
            return None
        if (self._class is not None and not isinstance(args[0], self._class)) or not self._has_room():
            return None
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError:
            return None  # the call itself will say what is wrong with it
        known = self._signature.parameters
        given = {name: value for name, value in bound.items() if value is not known[name].default}
        if self._class is not None:
            given.pop(next(iter(given)))
        self._calls += 1
        closely = self._calls <= _CLOSE_READS or self._calls % _THEN_EVERY == 0
        with reading():
            facts = [self._fact(name, value, closely) for name, value in given.items()]
            return (*facts, *self._by_class(given, closely))

    def after(self, facts: tuple[InputFact, ...], result: Any, error: BaseException | None) -> None:
        """Record it, if the loss returned."""
        watch = self._watch
        if error is not None:
            return
        readable = is_plain(result) and result.numel() == 1
        watch.emit(
            LossInputs(
                step=watch.window.steps,
                place=watch.places.here(),
                loss=self._name,
                module=self._module,
                inputs=facts,
                value=watch.scalars.later(result) if readable else None,
            )
        )

    def _has_room(self) -> bool:
        if self._window != self._watch.window.steps:
            self._window, self._in_window = self._watch.window.steps, 0
        self._in_window += 1
        return self._in_window <= MOST_CALLS

    def _fact(self, name: str, value: Any, closely: bool) -> InputFact:
        if isinstance(value, Tensor):
            return self._tensor(name, value, value.requires_grad, closely)
        if value is None or isinstance(value, (bool, int, float, str)):
            short = value[:_LONGEST_TEXT] if isinstance(value, str) else value
            return InputFact(name, value=short, kind="" if value is not None else "NoneType")
        return InputFact(name, kind=type(value).__name__)

    def _tensor(self, name: str, value: Tensor, requires_grad: bool, closely: bool) -> InputFact:
        shape, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        bare = InputFact(name, shape, dtype, requires_grad=requires_grad)
        is_read = closely or self._watch.scalars.is_immediate(value)
        if not is_read or not (is_plain(value) or is_whole(value)) or value.numel() == 0:
            return bare
        low, high = (float(end) for end in torch.aminmax(value))
        return InputFact(name, shape, dtype, low, high, _quantiles(value), requires_grad)

    def _by_class(self, given: dict[str, Any], closely: bool) -> list[InputFact]:
        """Of scores in rows and their classes: the score of the right class, and the highest of the others."""
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        classes = [value for value in tensors.values() if value.dim() == 1 and is_whole(value)]
        scores = [(name, value) for name, value in tensors.items() if value.dim() == 2 and is_plain(value)]
        if len(classes) != 1 or len(scores) != 1 or not (closely or self._watch.scalars.is_immediate(scores[0][1])):
            return []
        (name, rows), labels = scores[0], classes[0].long()
        counted = (labels >= 0) & (labels < rows.shape[1]) if len(labels) == len(rows) else labels < labels
        if rows.shape[1] < 2 or not bool(counted.any()):
            return []
        rows, labels = rows.detach()[counted], labels[counted][:, None]
        right = rows.gather(1, labels)[:, 0]
        other = rows.scatter(1, labels, float("-inf")).amax(1)
        return [
            self._tensor(f"{name}[{word}]", part, False, closely) for word, part in (("right", right), ("other", other))
        ]


def _quantiles(value: Tensor) -> tuple[float, ...]:
    """Of the finite elements, or of a sample of them spread over the tensor."""
    flat = value.detach().reshape(-1)
    sample = flat[:: -(-flat.numel() // LARGEST_SAMPLE)].to(
        torch.float64 if value.dtype is torch.float64 else torch.float32
    )
    sample = sample[torch.isfinite(sample)]
    if sample.numel() == 0:
        return ()
    found: list[float] = torch.quantile(sample, sample.new_tensor(QUANTILES)).tolist()
    return tuple(found)
