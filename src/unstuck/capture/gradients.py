"""Watches gradients being cleared and clipped."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.objects import parameters_of
from unstuck.capture.tensors import is_plain, may_measure
from unstuck.capture.watch import Watch
from unstuck.events import Clip, ZeroGrad


class Zeroing:
    """Follows `zero_grad` of optimizers and modules; an override that calls its parent's counts once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._inside = False

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ZeroGrad | None:
        """It is called: count what it will clear."""
        watch = self._watch
        watch.carried.forget()
        if self._inside or not watch.clock.sampled or not watch.is_listening():
            return None
        owner = args[0]
        set_to_none = args[1] if len(args) > 1 else kwargs.get("set_to_none", True)
        parameters: Iterable[Tensor]
        optimizer = model = None
        if isinstance(owner, Optimizer):
            optimizer, parameters = watch.objects.optimizer(owner), parameters_of(owner)
        else:
            assert isinstance(owner, nn.Module)
            model, parameters = watch.model(owner).label, owner.parameters()
        cleared = sum(parameter.grad is not None for parameter in parameters)
        self._inside = True
        return ZeroGrad(
            step=watch.clock.steps,
            place=watch.places.here(),
            optimizer=optimizer,
            model=model,
            set_to_none=bool(set_to_none),
            cleared=cleared,
        )

    def after(self, event: ZeroGrad, result: Any, error: BaseException | None) -> None:
        """It returned."""
        self._inside = False
        if event.cleared:
            self._watch.losses.clear()  # of backwards that no step will use
        if error is None:
            self._watch.emit(event)


class Clips:
    """Follows `clip_grad_norm_` and `clip_grad_value_`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: list[Tensor] | None = None
        """The parameters of the call under way, where they can be noted."""

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Parameters usually come as a generator, which can be read only once: note them as they pass."""
        self._seen = None
        if not self._watch.clock.sampled or not self._watch.is_listening():
            return None
        parameters = args[0] if args else kwargs.get("parameters")
        if isinstance(parameters, Iterator):
            self._seen = []
            passing = _noting(parameters, self._seen)
            return ((passing, *args[1:]), kwargs) if args else (args, {**kwargs, "parameters": passing})
        if isinstance(parameters, Tensor):
            self._seen = [parameters]
        elif isinstance(parameters, list | tuple):
            self._seen = list(parameters)
        return None

    def before_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any] | None:
        """`clip_grad_norm_` is called."""
        return self._before("norm", args, kwargs, "max_norm")

    def before_value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any] | None:
        """`clip_grad_value_` is called."""
        return self._before("value", args, kwargs, "clip_value")

    def after(self, call: tuple[str, Any], result: Any, error: BaseException | None) -> None:
        """It returned, with the norm if it clipped by norm; without any gradient it may have raised."""
        seen, self._seen = self._seen, None
        watch = self._watch
        kind, limit = call
        measured = is_plain(result) and result.numel() == 1 and may_measure()
        watch.emit(
            Clip(
                step=watch.clock.steps,
                place=watch.places.here(),
                kind=kind,
                limit=float(limit) if isinstance(limit, int | float) else None,
                norm=watch.scalars.later(result) if measured else None,
                with_grad=None if seen is None else sum(parameter.grad is not None for parameter in seen),
                parameters=None if seen is None else len(seen),
                target=None if seen is None else watch.objects.holder_of(seen),
            )
        )

    def _before(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], limit: str) -> tuple[str, Any] | None:
        if not self._watch.clock.sampled or not self._watch.is_listening():
            return None
        return kind, args[1] if len(args) > 1 else kwargs.get(limit)


def _noting(parameters: Iterator[Tensor], seen: list[Tensor]) -> Iterator[Tensor]:
    """The same parameters; a generator stays one, as torch warns of an empty generator alone."""

    def note(parameter: Tensor) -> Tensor:
        seen.append(parameter)
        return parameter

    def generate() -> Generator[Tensor, None, None]:
        yield from map(note, parameters)

    return generate() if isinstance(parameters, GeneratorType) else map(note, parameters)
