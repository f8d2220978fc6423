"""Observes gradients between backwards and steps: cleared, clipped, reduced over ranks, left over, used by nobody."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from unstuck.capture.measure.gauges import Used
from unstuck.capture.measure.tensors import is_plain, may_measure, norm, norms, reading, sample
from unstuck.capture.objects import Model, parameter_fact, parameters_of
from unstuck.capture.observers.forwards import Forwards
from unstuck.capture.torch_hooks.patches import Patches, has_compiled
from unstuck.capture.window import Observer, Watch
from unstuck.events import Clip, GradientsReduced, ParameterFact, Place, UntrainedGradients, ZeroGrad
from unstuck.gradients.manager import GradientManager

_ANGLES = 12
"""So many clippings by value are measured: they do not change much."""
_LEFT = 0.5
"""A gradient that lost more than this share of its norm was faded on purpose."""
_MOST_OPTIMIZERS = 64
"""A program that builds one for every task is followed afresh after so many."""
_WINDOWS = 12
"""So many windows are measured: what a program does to its gradients it does in all of them."""
_BACKWARDS = 16
_MOST_SETS = 10


class StaleGradients(Observer):
    """Measures gradients that a step has used and that are still there when the next backward adds to them.

    It follows who steps after whom: a backward works for the optimizer whose turn is next.

    Gradients of another may well be there: the two halves of a GAN clear their own just before their own backward.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._used: dict[int, tuple[weakref.ref[Optimizer], Used]] = {}
        self._followers: dict[int, set[int]] = {}
        self._last: int | None = None
        self._fresh = False

    def stepped(self, optimizer: Optimizer, gradients: Used | None) -> None:
        """An optimizer used these gradients; None if they were not measured."""
        key = id(optimizer)
        if key not in self._followers and len(self._followers) >= _MOST_OPTIMIZERS:
            self._used.clear()
            self._followers.clear()
            self._last = None
        self._used.pop(key, None)
        self._used = {other: item for other, item in self._used.items() if item[0]() is not None}
        if gradients is not None:
            self._used[key] = (weakref.ref(optimizer), gradients)
        self._followers.setdefault(key, set())
        if self._last is not None:
            self._followers[self._last].add(key)
        self._last = key
        self._fresh = True

    def sampling_changed(self, sampled: bool) -> None:
        """Between sampled windows nobody follows the steps."""
        if not sampled:
            self._used.clear()
            self._last, self._fresh = None, False

    def cleared(self) -> None:
        """Gradients were cleared."""
        self._fresh = False

    def measure(self, *, alone: bool) -> Any:
        """Their norm, at the first backward after a step; None if they are gone or it is not known whose turn it is.

        `alone` says that no other optimizer exists.
        """
        fresh, self._fresh = self._fresh, False
        optimizer, known = self._next(alone) if fresh and may_measure() else (None, None)
        if optimizer is None or known is None:
            return None
        left: list[Tensor] = []
        places: list[int] = []
        for parameter in parameters_of(optimizer):
            gradient = parameter.grad
            identity, place = known.gradients.get(id(parameter), (0, 0))
            if gradient is not None and id(gradient) == identity and is_plain(gradient):
                left.append(gradient)
                places.append(place)
        each = norms(left)
        if each is None:
            return None
        with reading():
            then = known.norms.to(each.device)[places]
            return self._watch.scalars.later(torch.linalg.vector_norm(torch.where(each >= _LEFT * then, each, 0.0)))

    def _next(self, alone: bool) -> tuple[Optimizer | None, Used | None]:
        if self._last is None:
            return None, None
        turns = {self._last} if alone else self._followers[self._last]
        reference, known = self._used.get(next(iter(turns), 0), (None, None)) if len(turns) == 1 else (None, None)
        return (reference() if reference else None), known


class GradientNorms:
    """The norm of all gradients that the known optimizers hold, in a few windows of a run."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._window = -1
        self._windows = 0
        self._backwards = 0

    def before(self) -> Any:
        """A backward is about to begin; what an earlier one of this window left is measured."""
        window = self._watch.window
        if not window.is_survey:
            return None
        if window.number != self._window:
            self._window, self._backwards = window.number, 0
            self._windows += 1
            return None
        return self._norm() if self._measures else None

    def after(self) -> Any:
        """It ended."""
        if not self._watch.window.is_survey:
            return None
        measured = self._norm() if self._measures else None
        self._backwards += 1
        return measured

    @property
    def _measures(self) -> bool:
        return self._windows <= _WINDOWS and self._backwards < _BACKWARDS

    def _norm(self) -> Any:
        if not may_measure():
            return None
        optimizers = self._watch.objects.optimizers()
        held = {id(parameter): parameter for optimizer, _ in optimizers for parameter in parameters_of(optimizer)}
        gradients = [parameter.grad for parameter in held.values()]
        each_norm = norms([gradient for gradient in gradients if gradient is not None and is_plain(gradient)])
        if each_norm is None:
            return None
        with reading():
            return self._watch.scalars.later(torch.linalg.vector_norm(each_norm))


class Zeroing(Observer):
    """Follows `zero_grad` of optimizers and modules; an override that calls its parent's counts once."""

    def __init__(self, watch: Watch, stale: StaleGradients) -> None:
        self._watch = watch
        self._stale = stale
        self._inside = False
        self._patches: Patches | None = None
        self._in_between = False
        """Has anything been cleared between a backward and the step?"""
        self._is_suspended = False

    def attach(self, patches: Patches) -> None:
        """Observe both."""
        self._patches = patches
        patches.around(Optimizer, "zero_grad", self.before, self.after, skip=self.is_idle)
        patches.around(nn.Module, "zero_grad", self.before, self.after, skip=self.is_idle)

    def sampling_changed(self, sampled: bool) -> None:
        """Between sampled windows nobody wants to know of calls that clear what a step has used."""
        self._suspend(not sampled and not self._in_between)

    def backward(self) -> None:
        """Another backward is about to add to the gradients, unless a call that was not seen has cleared them."""
        if self._is_suspended:
            self._in_between = True
            self._suspend(False)
            optimizers = self._watch.objects.optimizers()
            if all(parameter.grad is None for optimizer, _ in optimizers for parameter in parameters_of(optimizer)):
                self._watch.window.losses.clear()

    def _suspend(self, on: bool) -> None:
        if self._patches is None or self._is_suspended is on or (on and has_compiled()):
            return
        self._is_suspended = on
        for name in ("Optimizer.zero_grad", "Module.zero_grad"):
            (self._patches.suspend if on else self._patches.resume)(name)

    def observe_class(self, kind: type[Optimizer]) -> None:
        """Observe it also where an optimizer of this class overrides it."""
        if self._patches is not None:
            self._patches.around_overrides(kind, Optimizer, "zero_grad", self.before, self.after)

    def is_idle(self) -> bool:
        """Between sampled windows it matters only if it clears what a backward has just made."""
        return not self._watch.window.losses and not self._watch.window.sampled

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ZeroGrad | None:
        """It is called: count what it will clear."""
        watch = self._watch
        self._stale.cleared()
        self._in_between = self._in_between or bool(watch.window.losses)
        if self._inside or not watch.is_listening():
            return None
        owner = args[0]
        if not watch.window.sampled:
            if watch.window.losses and any(parameter.grad is not None for parameter in _held_by(owner)):
                watch.window.losses.clear()
            return None
        set_to_none = args[1] if len(args) > 1 else kwargs.get("set_to_none", True)
        optimizer = watch.objects.optimizer(owner) if isinstance(owner, Optimizer) else None
        model = watch.objects.model(owner).label if isinstance(owner, nn.Module) else None
        cleared = sum(parameter.grad is not None for parameter in _held_by(owner))
        self._inside = True
        return ZeroGrad(
            step=watch.window.steps,
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
            self._watch.window.losses.clear()  # of backwards that no step will use
        if error is None:
            self._watch.emit(event)


class Clips(Observer):
    """Follows `clip_grad_norm_` and `clip_grad_value_`, and the clipping of our own GradientManager."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: list[Tensor] | None = None
        """The parameters of the call under way, where they can be noted."""
        self._angles = 0

    def attach(self, patches: Patches) -> None:
        """Observe the functions under both of their names."""
        for owner in (nn.utils, clip_grad):
            patches.around(owner, "clip_grad_norm_", self.before_norm, self.after, self.prepare)
            patches.around(owner, "clip_grad_value_", self.before_value, self.after, self.prepare)
        patches.around(GradientManager, "_clip", self.manager_before, self.manager_after)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Parameters usually come as a generator, which can be read only once: note them as they pass."""
        self._seen = None
        if not self._watch.window.sampled or not self._watch.is_listening():
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
                step=watch.window.steps,
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
        if not self._watch.window.sampled or not self._watch.is_listening() or manager.clip is None:
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
                step=watch.window.steps,
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
        if not self._watch.window.sampled or not self._watch.is_listening():
            return None
        limit = args[1] if len(args) > 1 else kwargs.get(name)
        return kind, limit, self._turned(limit) if kind == "value" else None

    def _turned(self, limit: Any) -> Any:
        """By how much the call will turn the gradient. A generator of parameters is not read for this."""
        watch = self._watch
        known = isinstance(limit, int | float) and limit > 0
        if not known or not watch.window.is_survey or self._angles >= _ANGLES or not may_measure():
            return None
        self._angles += 1
        held = (parameter for optimizer, _ in watch.objects.optimizers() for parameter in parameters_of(optimizer))
        parameters = self._seen or list({id(parameter): parameter for parameter in held}.values())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        degrees = _angle([gradient for gradient in gradients if is_plain(gradient) and gradient.numel()], float(limit))
        return None if degrees is None else watch.scalars.later(degrees)


class Untrained:
    """Finds parameters that get gradients and that nobody ever moves: at sampled steps it compares the parameters that
    have a gradient with those that optimizers hold."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._still: dict[int, tuple[tuple[int, float], float]] = {}
        """Version and norm of each candidate when last seen, and the norm of its gradient; updates by `.data` leave the
        version alone."""
        self._recorded: set[tuple[Place | None, frozenset[str]]] = set()

    def check(self) -> None:
        """An optimizer is about to step; from the second step on, what has not moved is recorded."""
        if not may_measure():
            return
        held = {id(p) for optimizer, _ in self._watch.objects.optimizers() for p in parameters_of(optimizer)}
        unmoved = [item for item in self._candidates(held) if self._has_stayed(item[1])]
        if self._watch.window.steps == 0:
            return
        for place in dict.fromkeys(place for *_, place in unmoved):
            group = [(name, parameter) for name, parameter, where in unmoved if where == place]
            sizes = norms([parameter.grad for _, parameter in group if parameter.grad is not None])
            facts = tuple(parameter_fact(name, parameter) for name, parameter in group)
            self._tell(facts, place, () if sizes is None else tuple(sizes.tolist()))
        for model in self._watch.objects.models():
            for place, facts in model.rebuilt.items():
                self._tell(facts, place, ())

    def _tell(self, facts: tuple[ParameterFact, ...], place: Place | None, sizes: tuple[float, ...]) -> None:
        matter = (place, frozenset(fact.name for fact in facts))
        if not facts or matter in self._recorded or len(self._recorded) >= _MOST_SETS:
            return
        self._recorded.add(matter)
        step = self._watch.window.steps
        self._watch.tell(UntrainedGradients(step=step, place=place, parameters=facts, norms=sizes))

    def _candidates(self, held: set[int]) -> list[tuple[str, Tensor, Place | None]]:
        """Trainable parameters outside `held` that have a gradient, each with its name and place."""
        found: dict[int, tuple[str, Tensor, Place | None]] = {}
        for model in self._watch.objects.models():
            named = [(name, parameter, None) for name, parameter in model.parameters()]
            if _is_fixed(model, held) or self._is_over(model, held):
                continue
            for name, parameter, place in [*named, *model.strays()]:
                wanted = parameter.requires_grad and id(parameter) not in held
                if wanted and is_plain(parameter.grad) and is_plain(parameter):
                    found.setdefault(id(parameter), (name, parameter, place))
        return list(found.values())

    def _is_over(self, model: Model, held: set[int]) -> bool:
        """Was it trained before, by an optimizer that is gone?"""
        trained = model.module is not None and self._watch.objects.was_trained(model.module)
        return trained and not any(id(parameter) in held for _, parameter in model.parameters())

    def _has_stayed(self, parameter: Tensor) -> bool:
        """Did it get another gradient since it was last seen, and stayed where it was? A gradient that stays, too, is
        left from an earlier training."""
        gradient = 0.0 if parameter.grad is None else float(norm(parameter.grad))
        now = (parameter._version, float(norm(parameter)))
        before = self._still.get(id(parameter))
        self._still[id(parameter)] = now, gradient
        return before is not None and before[0] == now and (before[1] != gradient or gradient == 0)


def _is_fixed(model: Model, held: set[int]) -> bool:
    """A whole model in eval mode that no optimizer touches, such as a network for a perceptual loss, is meant so."""
    module = model.module
    return module is not None and not module.training and not any(id(p) in held for _, p in model.parameters())


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


class Reductions(Observer):
    """Notices gradients that the program reduces over the ranks by itself."""

    def __init__(self, watch: Watch, forwards: Forwards) -> None:
        self._watch = watch
        self._forwards = forwards
        self._window = -1
        self._gradients: set[int] = set()
        self._places: set[Place | None] = set()
        """Where that was recorded."""

    def attach(self, patches: Patches) -> None:
        """Observe `all_reduce` under both of its names."""
        if torch.distributed.is_available():
            for module in (torch.distributed, torch.distributed.distributed_c10d):
                patches.around(module, "all_reduce", self.before, self.after)

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        """`all_reduce` is called; the first windows show whether it is given gradients."""
        watch, tensor = self._watch, args[0] if args else kwargs.get("tensor")
        if watch.window.number > 3 or not watch.is_listening() or not isinstance(tensor, Tensor):
            return None
        if watch.window.number != self._window:
            self._window = watch.window.number
            held = (parameter for optimizer, _ in watch.objects.optimizers() for parameter in parameters_of(optimizer))
            self._gradients = {id(parameter.grad) for parameter in held if parameter.grad is not None}
        return True if id(tensor) in self._gradients else None

    def after(self, call: bool, result: Any, error: BaseException | None) -> None:
        """It returned."""
        watch, place = self._watch, self._watch.places.here()
        if error is None and place not in self._places:
            self._places.add(place)
            wrapped = self._forwards.synced is not None
            watch.tell(GradientsReduced(step=watch.window.steps, place=place, wrapped=wrapped))
