"""Other settings of the optimizers: learning rates, weight decay, options, clipping, schedules."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.trial.interventions.lab import Lab

Wanted = Callable[[Optimizer, int, float], float]
"""From an optimizer, the number of a group and the rate it has to the rate it is to have."""


class _Rates:
    """Sets the learning rates before each step and puts the script's own back after it: its schedule goes on."""

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
"""One for each lab, so that several changes of the rates are made and undone as one."""


def change_rates(lab: Lab, wanted: Wanted) -> None:
    """Use other learning rates, on top of what other interventions make of them."""
    if lab not in _RATES:
        _RATES[lab] = _Rates(lab)
    _RATES[lab].wanted.append(wanted)


class _Built:
    """What each group was built with: a schedule or the loop may have changed its rate since, to 0 in a warm-up."""

    def __init__(self, lab: Lab) -> None:
        self._first: dict[tuple[int, int], float] = {}
        self._bases: dict[int, list[float]] = {}
        lab.wrap(Optimizer, "add_param_group", self._noting)

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            number = len(optimizer.param_groups) - 1
            self._first[id(optimizer), number] = _rate(optimizer.param_groups[number])
            return result

        return add_param_group

    def rates(self, optimizer: Optimizer) -> list[float]:
        """By group. If all are 0 the default stands for them, and 1 if that is 0 too."""
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
        self._built = _Built(lab)
        self._told: list[float] = []
        lab.notes["rates"] = self._told
        change_rates(lab, self._wanted)
        lab.after_steps(self._stepped)

    def _wanted(self, optimizer: Optimizer, group: int, own: float) -> float:
        return self._built.rates(optimizer)[group] * self._factor(optimizer)

    def _factor(self, optimizer: Optimizer) -> float:
        return self._first * math.pow(self._growth, self._steps.setdefault(id(optimizer), 0))

    def _stepped(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._steps:
            return  # another optimizer that shares its groups is being swept
        if len(self._steps) == 1:
            self._told.append(max(self._built.rates(optimizer)) * self._factor(optimizer))
        self._steps[id(optimizer)] += 1


def hold_rates(lab: Lab) -> None:
    """Keep every rate where the optimizer was built with, whatever schedulers say."""
    built = _Built(lab)
    change_rates(lab, lambda optimizer, group, own: built.rates(optimizer)[group])


def set_option(lab: Lab, name: str, value: float) -> None:
    """Set an option of every group before each step."""

    def put(optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if name in group:
                group[name] = value

    lab.before_steps(put)


def clip(lab: Lab, norm: float) -> None:
    """Clip the norm of all gradients that a step is going to use."""

    def shrink(optimizer: Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        dense = [gradient for gradient in gradients if not gradient.is_sparse]
        size = math.sqrt(sum(float(gradient.float().norm()) ** 2 for gradient in dense))
        for gradient in dense if size > norm or not math.isfinite(size) else ():
            gradient.mul_(norm / size if math.isfinite(size) else 0.0)

    lab.before_steps(shrink)


def clip_nothing(lab: Lab) -> None:
    """Give the script's own clipping a limit that nothing reaches."""

    def unlimited(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop("max_norm", None), kwargs.pop("clip_value", None)
            return original(parameters, math.inf, *args[1:], **kwargs)

        return clip_grad

    for owner in (nn.utils, nn.utils.clip_grad):
        lab.wrap(owner, "clip_grad_norm_", unlimited)
        lab.wrap(owner, "clip_grad_value_", unlimited)


def add_parameters(lab: Lab) -> None:
    """At its first step, give an optimizer what the loss depends on and nobody holds; also what no module knows of."""
    leaves: dict[int, Tensor] = {}
    held: set[int] = set()
    done: set[int] = set()

    def holding(original: Callable[..., Any]) -> Callable[..., Any]:
        def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            held.update(id(p) for p in optimizer.param_groups[-1]["params"])

        return add_param_group

    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not done and loss.grad_fn is not None:
                leaves.update({id(leaf): leaf for leaf in _leaves(loss.grad_fn)})
            return original(loss, *args, **kwargs)

        return backward

    def add(optimizer: Optimizer) -> None:
        if id(optimizer) in done:
            return
        done.add(id(optimizer))
        held.update(id(p) for group in optimizer.param_groups for p in group["params"])
        missing = [leaf for key, leaf in leaves.items() if key not in held and leaf.grad is not None]
        # To a group that is there: schedulers know how many there are.
        optimizer.param_groups[-1]["params"] += missing
        held.update(id(leaf) for leaf in missing)

    lab.wrap(Optimizer, "add_param_group", holding)
    lab.wrap(Tensor, "backward", looking)
    lab.before_steps(add)


def _leaves(root: Any) -> Iterator[Tensor]:
    """The parameters that a graph ends in."""
    seen, todo = {root}, [root]
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            yield leaf
        todo += [following for following, _ in node.next_functions if following is not None and following not in seen]
        seen.update(todo)
