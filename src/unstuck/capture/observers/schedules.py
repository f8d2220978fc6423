"""Observes learning-rate schedulers."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from unstuck.capture.objects import rates
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.events import RateAsked, ScheduleEnded, SchedulerSeen, SchedulerStep

_FIRST = 3
"""The first steps of a scheduler, and the first wrong answers it gives, are recorded in every kind of window."""
_MOST = 100
"""A program that builds more schedulers than this is followed no further."""
_NUMBERS = (
    "T_max T_0 T_mult eta_min total_steps step_size gamma total_iters power start_factor end_factor factor patience "
    "last_epoch"
).split()


class _Schedule:
    """What is known of one scheduler; nothing keeps it alive."""

    def __init__(self, scheduler: Any, label: str, steps: int) -> None:
        self.scheduler = weakref.ref(scheduler)
        self.label = label
        self.built_at = steps
        self.count = 0
        self.asked = 0
        self.driven = False
        """Another scheduler steps it."""


class Schedulers(Observer):
    """Follows learning-rate schedulers; the step a scheduler takes while it is built does not count."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._running: list[Any] = []
        self._known: dict[int, _Schedule] = {}
        self._all: list[_Schedule] = []
        self._labels: dict[str, int] = {}
        self._patches: Patches | None = None

    def attach(self, patches: Patches) -> None:
        """Observe torch's classes that have a `step` or an `__init__` of their own; others when one is built."""
        self._patches = patches
        base = lr_scheduler.LRScheduler
        patches.around(base, "step", self.before, self.after)
        patches.around(base, "__init__", self._building, self.built)
        for kind in (lr_scheduler.ReduceLROnPlateau, lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler):
            patches.around_overrides(kind, base, "step", self.before, self.after)
            patches.around(kind, "__init__", self._building, self.built)

    def _building(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind = type(args[0])
        if self._patches is not None:
            self._patches.around_overrides(kind, lr_scheduler.LRScheduler, "step", self.before, self.after)
            for owner in kind.__mro__:
                if owner.__module__ == lr_scheduler.__name__:
                    self._patches.around(owner, "get_lr", self.rate_before, self.rate_after)
        return args[0]

    def built(self, scheduler: Any, result: Any, error: BaseException | None) -> None:
        """Its `__init__` returned."""
        if error is not None or not self._watch.is_listening():
            return
        for part in getattr(scheduler, "_schedulers", ()):
            if (known := self._find(part)) is not None:
                known.driven = True
        if self._find(scheduler) is None and len(self._all) < _MOST:
            self._announce(scheduler)

    def _announce(self, scheduler: Any) -> None:
        watch, kind = self._watch, type(scheduler).__name__
        number = self._labels[kind] = self._labels.get(kind, 0) + 1
        known = _Schedule(scheduler, kind if number == 1 else f"{kind}#{number}", watch.window.steps)
        self._known[id(scheduler)] = known
        self._all.append(known)
        found = getattr(scheduler, "optimizer", None)
        optimizer = found if isinstance(found, Optimizer) else None
        mode = getattr(scheduler, "mode", None) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else None
        watch.tell(
            SchedulerSeen(
                step=watch.window.steps,
                place=watch.places.here(),
                kind=kind,
                scheduler=known.label,
                optimizer=watch.objects.optimizer(optimizer) if optimizer is not None else "",
                numbers=_numbers(scheduler),
                rates=rates(optimizer) if optimizer is not None else (),
                wants_more=mode == "max" if mode in ("min", "max") else None,
            )
        )

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool, float | None]:
        """`scheduler.step` is called; chained schedulers call the steps of others, overrides that of their parent."""
        scheduler = args[0]
        given = [value for value in (*args[1:], *kwargs.values()) if value is not None]
        metric = None
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            metric = float(given[0]) if given and isinstance(given[0], int | float) else None
            given = []
        self._running.append(scheduler)
        return scheduler, bool(given), metric

    def after(self, call: tuple[Any, bool, float | None], result: Any, error: BaseException | None) -> None:
        """It returned."""
        scheduler, has_argument, metric = call
        self._running.pop()
        if error is not None or getattr(scheduler, "_is_initial", False) or not self._watch.is_listening():
            return
        known = self._find(scheduler)
        if any(other is scheduler for other in self._running):
            return
        if known is not None:
            known.count += 1
            known.driven = known.driven or bool(self._running)
        if not self._running:
            self._stepped(scheduler, known, has_argument, metric)

    def _stepped(self, scheduler: Any, known: _Schedule | None, has_argument: bool, metric: float | None) -> None:
        watch, count = self._watch, known.count if known is not None else 0
        # Powers of two keep the count in the record of a scheduler that steps between sampled windows.
        milestone = 0 < count <= _FIRST or count & (count - 1) == 0 < count
        if not milestone and not watch.window.sampled:
            return
        optimizer = getattr(scheduler, "optimizer", None)
        event = SchedulerStep(
            step=watch.window.steps,
            place=watch.places.here(),
            kind=type(scheduler).__name__,
            rates=rates(optimizer) if isinstance(optimizer, Optimizer) else (),
            scheduler=known.label if known is not None else "",
            count=count,
            told=has_argument,
            metric=metric,
        )
        (watch.tell if milestone else watch.emit)(event)

    def rate_before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Schedule | None:
        """`get_lr` is called; only a call from outside of any step matters."""
        if self._running or getattr(args[0], "_get_lr_called_within_step", False) or not self._watch.is_listening():
            return None
        known = self._find(args[0])
        return known if known is not None and known.asked < _FIRST else None

    def rate_after(self, known: _Schedule, result: Any, error: BaseException | None) -> None:
        """It returned."""
        scheduler = known.scheduler()
        optimizer = getattr(scheduler, "optimizer", None)
        if error is not None or not isinstance(result, list) or not isinstance(optimizer, Optimizer):
            return
        answer = tuple(float(rate) for rate in result if not isinstance(rate, Tensor))
        if answer == rates(optimizer):
            return
        known.asked += 1
        watch = self._watch
        watch.tell(
            RateAsked(
                step=watch.window.steps,
                place=watch.places.here(),
                kind=type(scheduler).__name__,
                scheduler=known.label,
                answer=answer,
                rates=rates(optimizer),
            )
        )

    def finish(self) -> None:
        """Record how far each came."""
        steps = self._watch.window.steps
        for known in self._all:
            if not known.driven:
                event = ScheduleEnded(
                    step=steps, scheduler=known.label, count=known.count, steps=steps - known.built_at
                )
                self._watch.tell(event)

    def _find(self, scheduler: Any) -> _Schedule | None:
        known = self._known.get(id(scheduler))
        return known if known is not None and known.scheduler() is scheduler else None


def _numbers(scheduler: Any) -> dict[str, float]:
    found = {name: value for name in _NUMBERS if isinstance(value := getattr(scheduler, name, None), int | float)}
    milestones = getattr(scheduler, "milestones", None) or getattr(scheduler, "_milestones", None)
    if milestones and all(isinstance(milestone, int | float) for milestone in milestones):
        found |= {"milestones": len(milestones), "last_milestone": max(milestones)}
    return found
