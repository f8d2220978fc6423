"""Watches gradients being cleared and clipped."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.samples import sample
from unstuck.capture.measure.tensors import is_plain, may_measure, reading
from unstuck.capture.objects import parameters_of
from unstuck.capture.watch import Watch
from unstuck.events import Clip, GradientsReduced, Place, ZeroGrad

_ANGLES = 12
"""So many clippings by value are measured: they do not change much."""


class Zeroing:
    """Follows `zero_grad` of optimizers and modules; an override that calls its parent's counts once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._inside = False

    def is_idle(self) -> bool:
        """Between sampled windows it matters only if it clears what a backward has just made."""
        return not self._watch.losses and not self._watch.clock.sampled

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ZeroGrad | None:
        """It is called: count what it will clear."""
        watch = self._watch
        watch.carried.forget()
        if self._inside or not watch.is_listening():
            return None
        owner = args[0]
        if not watch.clock.sampled:
            if watch.losses and any(parameter.grad is not None for parameter in _held_by(owner)):
                watch.losses.clear()
            return None
        set_to_none = args[1] if len(args) > 1 else kwargs.get("set_to_none", True)
        optimizer = watch.objects.optimizer(owner) if isinstance(owner, Optimizer) else None
        model = watch.model(owner).label if isinstance(owner, nn.Module) else None
        cleared = sum(parameter.grad is not None for parameter in _held_by(owner))
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
    """Follows `clip_grad_norm_` and `clip_grad_value_`, and the clipping of our own GradientManager."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: list[Tensor] | None = None
        """The parameters of the call under way, where they can be noted."""
        self._angles = 0

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

    def before_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, Any] | None:
        """`clip_grad_norm_` is called."""
        return self._before("norm", args, kwargs, "max_norm")

    def before_value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, Any] | None:
        """`clip_grad_value_` is called."""
        return self._before("value", args, kwargs, "clip_value")

    def after(self, call: tuple[str, Any, Any], result: Any, error: BaseException | None) -> None:
        """It returned, with the norm if it clipped by norm; without any gradient it may have raised."""
        seen, self._seen = self._seen, None
        watch = self._watch
        kind, limit, turned = call
        measured = is_plain(result) and result.numel() == 1 and may_measure()
        watch.emit(
            Clip(
                step=watch.clock.steps,
                place=watch.places.here(),
                kind=kind,
                limit=float(limit) if isinstance(limit, int | float) else None,
                norm=watch.scalars.later(result) if measured else None,
                turned=turned,
                with_grad=None if seen is None else sum(parameter.grad is not None for parameter in seen),
                parameters=None if seen is None else len(seen),
                target=None if seen is None else watch.objects.holder_of(seen),
            )
        )

    def manager_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """`GradientManager._clip` is called; what it is given is measured already."""
        manager, gradients, _, _, total = args[:5]
        if not self._watch.clock.sampled or not self._watch.is_listening() or manager.clip is None:
            return None
        by_value = getattr(manager.clip, "value", None)
        limit = by_value if by_value is not None else manager.clip.limit
        return "norm" if by_value is None else "value", limit, total, gradients.parameters

    def manager_after(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """It returned."""
        kind, limit, total, parameters = call
        watch = self._watch
        watch.emit(
            Clip(
                step=watch.clock.steps,
                place=watch.places.here(),
                kind=kind,
                limit=float(limit) if isinstance(limit, int | float) else None,
                norm=watch.scalars.later(total) if is_plain(total) and may_measure() else None,
                with_grad=len(parameters),
                parameters=len(parameters),
            )
        )

    def _before(
        self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
    ) -> tuple[str, Any, Any] | None:
        if not self._watch.clock.sampled or not self._watch.is_listening():
            return None
        limit = args[1] if len(args) > 1 else kwargs.get(name)
        return kind, limit, self._turned(limit) if kind == "value" else None

    def _turned(self, limit: Any) -> Any:
        """By how much the call will turn the gradient. A generator of parameters is not read for this."""
        watch = self._watch
        known = isinstance(limit, int | float) and limit > 0
        if not known or not watch.clock.is_survey or self._angles >= _ANGLES or not may_measure():
            return None
        self._angles += 1
        held = (parameter for optimizer, _ in watch.objects.optimizers() for parameter in parameters_of(optimizer))
        parameters = self._seen or list({id(parameter): parameter for parameter in held}.values())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        degrees = _angle([gradient for gradient in gradients if is_plain(gradient) and gradient.numel()], float(limit))
        return None if degrees is None else watch.scalars.later(degrees)


def _held_by(owner: Optimizer | nn.Module) -> Iterable[Tensor]:
    return parameters_of(owner) if isinstance(owner, Optimizer) else owner.parameters()


def _noting(parameters: Iterator[Tensor], seen: list[Tensor]) -> Iterator[Tensor]:
    """The same parameters; a generator stays one, as torch warns of an empty generator alone."""

    def note(parameter: Tensor) -> Tensor:
        seen.append(parameter)
        return parameter

    def generate() -> Generator[Tensor, None, None]:
        yield from map(note, parameters)

    return generate() if isinstance(parameters, GeneratorType) else map(note, parameters)


def _angle(gradients: list[Tensor], limit: float) -> Tensor | None:
    """Between gradients and what is left of them when each element is cut off at the limit, in degrees."""
    if not gradients:
        return None
    with reading():
        sums = []
        for gradient in gradients:
            values = sample(gradient).reshape(-1).float()
            cut = values.clamp(-limit, limit)
            products = torch.stack(((values * cut).sum(), (values * values).sum(), (cut * cut).sum()))
            sums.append(products.to(gradients[0].device) * (gradient.numel() / values.numel()))
        both, whole, left = torch.stack(sums).sum(0)
        cosine = both / (whole * left).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
        return torch.rad2deg(torch.arccos(cosine.clamp(-1.0, 1.0)))


class Reductions:
    """Notices gradients that the program reduces over the ranks by itself."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._window = -1
        self._gradients: set[int] = set()
        self._told: set[Place | None] = set()

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        """`all_reduce` is called; the first windows show whether it is given gradients."""
        watch, tensor = self._watch, args[0] if args else kwargs.get("tensor")
        if watch.clock.windows > 3 or not watch.is_listening() or not isinstance(tensor, Tensor):
            return None
        if watch.clock.windows != self._window:
            self._window = watch.clock.windows
            held = (parameter for optimizer, _ in watch.objects.optimizers() for parameter in parameters_of(optimizer))
            self._gradients = {id(parameter.grad) for parameter in held if parameter.grad is not None}
        return True if id(tensor) in self._gradients else None

    def after(self, call: bool, result: Any, error: BaseException | None) -> None:
        """It returned."""
        watch, place = self._watch, self._watch.places.here()
        if error is None and place not in self._told:
            self._told.add(place)
            watch.tell(GradientsReduced(step=watch.clock.steps, place=place, wrapped=watch.synced is not None))
