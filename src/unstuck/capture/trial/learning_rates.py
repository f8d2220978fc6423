"""Other learning rates: set before each step, put back after it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.trial.lab import Lab

Wanted = Callable[[Optimizer, int, float], float]
"""From an optimizer, the number of a group and its rate to the rate to use."""


class _Rates:
    """Sets the learning rates before each step and puts the script's own back after it, whose schedule continues."""

    def __init__(self, lab: Lab) -> None:
        self.wanted: list[Wanted] = []
        self._own: dict[int, tuple[dict[str, Any], Any]] = {}
        """Groups that are changed now, and the rate to put back. A group changed already is left: optimizers that wrap
        others share their groups with them."""
        self._changed_by: dict[int, list[int]] = {}
        lab.before_steps(self._set)
        lab.after_steps(self._put_back)

    def _set(self, optimizer: Optimizer) -> None:
        self._put_back(optimizer)  # a step that raised has left them
        mine = self._changed_by[id(optimizer)] = []
        for index, group in enumerate(optimizer.param_groups):
            own = group.get("lr")
            if own is None or id(group) in self._own:
                continue
            mine.append(id(group))
            self._own[id(group)] = group, float(own) if isinstance(own, Tensor) else own
            rate = float(own)
            for wanted in self.wanted:
                rate = wanted(optimizer, index, rate)
            _put(group, rate)

    def _put_back(self, optimizer: Optimizer) -> None:
        for key in self._changed_by.pop(id(optimizer), ()):
            _put(*self._own.pop(key))


def _put(group: dict[str, Any], rate: Any) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


_RATES: WeakKeyDictionary[Lab, _Rates] = WeakKeyDictionary()
"""One for each lab, so that several changes of the rates are applied and undone together."""


def change_rates(lab: Lab, wanted: Wanted) -> None:
    """Use other learning rates, on top of what other interventions make of them."""
    if lab not in _RATES:
        _RATES[lab] = _Rates(lab)
    _RATES[lab].wanted.append(wanted)


class InitialRates:
    """The rate each group was built with: a schedule or the loop may have changed it since, to 0 in a warm-up."""

    def __init__(self, lab: Lab) -> None:
        self._first: dict[tuple[int, int], float] = {}
        self._bases: dict[int, list[float]] = {}
        lab.wrap(Optimizer, "add_param_group", self._recording)

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            number = len(optimizer.param_groups) - 1
            self._first[id(optimizer), number] = _rate(optimizer.param_groups[number])
            return result

        return add_param_group

    def rates(self, optimizer: Optimizer) -> list[float]:
        """By group. If all are 0, the default of the optimizer instead, or 1 if that is 0 too."""
        known = self._bases.get(id(optimizer))
        if known is None or len(known) != len(optimizer.param_groups):
            groups = enumerate(optimizer.param_groups)
            known = [
                _number(group.get("initial_lr")) or self._first.get((id(optimizer), number), _rate(group))
                for number, group in groups
            ]
            if not any(known):
                known = [_number(optimizer.defaults.get("lr")) or 1.0] * len(known)
            self._bases[id(optimizer)] = known
        return known


def _rate(group: dict[str, Any]) -> float:
    return _number(group.get("lr"))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | Tensor) else 0.0


class Sweep:
    """The rates of a range test: each group in proportion, whatever the schedule of the script says."""

    def __init__(self, lab: Lab, first: float, last: float, steps: int) -> None:
        self._first, self._growth = first, (last / first) ** (1 / max(1, steps - 1))
        self._steps: dict[int, int] = {}
        self._initial = InitialRates(lab)
        self._rates: list[float] = []
        lab.notes["rates"] = self._rates
        change_rates(lab, self._wanted)
        lab.after_steps(self._stepped)

    def _wanted(self, optimizer: Optimizer, group: int, own: float) -> float:
        return self._initial.rates(optimizer)[group] * self._factor(optimizer)

    def _factor(self, optimizer: Optimizer) -> float:
        return self._first * math.pow(self._growth, self._steps.setdefault(id(optimizer), 0))

    def _stepped(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._steps:
            return  # another optimizer that shares its groups is being swept
        if len(self._steps) == 1:
            self._rates.append(max(self._initial.rates(optimizer)) * self._factor(optimizer))
        self._steps[id(optimizer)] += 1
