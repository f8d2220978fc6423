"""Finds parameters that get gradients and that nobody ever moves."""

from __future__ import annotations

from torch import Tensor

from unstuck.capture.detect.frozen import FrozenStatistics
from unstuck.capture.measure.tensors import is_plain, may_measure, norm, norms
from unstuck.capture.objects import Model, parameter_fact, parameters_of
from unstuck.capture.watch import Watch
from unstuck.events import ParameterFact, Place, UntrainedGradients

_MOST_SETS = 10


class Untrained:
    """Compares, at sampled steps, the parameters that hold a gradient with those that optimizers hold."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._still: dict[int, tuple[int, float]] = {}
        """Version and norm of each candidate when first seen; updates by `.data` leave the version alone."""
        self._told: set[tuple[Place | None, frozenset[str]]] = set()
        self._statistics = FrozenStatistics(watch)

    def check(self) -> None:
        """An optimizer is about to step; from the second step on, what has not moved is told."""
        self._announce_changes()
        self._statistics.check()
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

    def _announce_changes(self) -> None:
        for optimizer, _ in self._watch.objects.optimizers():
            if self._watch.objects.has_news(optimizer):
                self._watch.announce_optimizer(optimizer)

    def _tell(self, facts: tuple[ParameterFact, ...], place: Place | None, sizes: tuple[float, ...]) -> None:
        matter = (place, frozenset(fact.name for fact in facts))
        if not facts or matter in self._told or len(self._told) >= _MOST_SETS:
            return
        self._told.add(matter)
        step = self._watch.window.steps
        self._watch.tell(UntrainedGradients(step=step, place=place, parameters=facts, norms=sizes))

    def _candidates(self, held: set[int]) -> list[tuple[str, Tensor, Place | None]]:
        """Trainable parameters outside `held` that have a gradient, each with its name and place."""
        found: dict[int, tuple[str, Tensor, Place | None]] = {}
        for model in self._watch.objects.models():
            named = [(name, parameter, None) for name, parameter in model.parameters()]
            if _is_fixed(model, held):
                continue
            for name, parameter, place in [*named, *model.strays()]:
                wanted = parameter.requires_grad and id(parameter) not in held
                if wanted and is_plain(parameter.grad) and is_plain(parameter):
                    found.setdefault(id(parameter), (name, parameter, place))
        return list(found.values())

    def _has_stayed(self, parameter: Tensor) -> bool:
        now = (parameter._version, float(norm(parameter)))
        before = self._still.get(id(parameter))
        self._still[id(parameter)] = now
        return before == now


def _is_fixed(model: Model, held: set[int]) -> bool:
    """A whole model in eval mode that no optimizer touches, such as a network for a perceptual loss, is meant so."""
    module = model.module
    return module is not None and not module.training and not any(id(p) in held for _, p in model.parameters())
