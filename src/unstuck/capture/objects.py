"""The models and optimizers of a process: who they are, what they hold. Nothing is written onto them."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from unstuck.capture.measure.describe import group_facts, heeds_mode, module_fact, state_dtypes
from unstuck.capture.measure.tensors import number
from unstuck.events import ModelSeen, OptimizerSeen, ParameterFact, Place

_WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "module",
}

_MOST_INNER = 5000
_FEW_NAMES = 200
_FEW_MODULES = 100
_MOST_OF_A_KIND = 8
"""Optimizers of one kind recorded with all their parameters; of later ones, as in a program that builds one per task,
less is recorded."""
_MOST_COUNTED = 100
_MOST_TIMES = 6
"""How often one optimizer is recorded again because something about it has changed."""


class Order:
    """The order in which modules first run in training, with the line that called each.

    An address may be another module's later, so each is checked.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Module], int, Place | None]] = {}
        self._room = _FEW_MODULES
        self.count = 0
        """How many have been seen."""

    def note(self, module: nn.Module, place: Place | None) -> None:
        """A module has run, called at this line."""
        if self._of(module) is not None:
            return
        if len(self._known) >= self._room:
            self._known = {key: item for key, item in self._known.items() if item[0]() is not None}
            self._room = max(_FEW_MODULES, 2 * len(self._known))
        self._known[id(module)] = (weakref.ref(module), self.count, place)
        self.count += 1

    def of(self, module: nn.Module) -> int:
        """Its number; -1 if it was not seen to run."""
        known = self._of(module)
        return -1 if known is None else known[1]

    def place(self, module: nn.Module | None) -> Place | None:
        """The line that called it."""
        known = self._of(module) if module is not None else None
        return None if known is None else known[2]

    def _of(self, module: nn.Module) -> tuple[weakref.ref[nn.Module], int, Place | None] | None:
        known = self._known.get(id(module))
        return known if known is not None and known[0]() is module else None


def unwrap(module: nn.Module) -> nn.Module:
    """The user's own model inside the wrappers of torch."""
    inner: Any = module
    while (attribute := _WRAPPERS.get(type(inner).__name__)) and isinstance(getattr(inner, attribute, None), nn.Module):
        inner = getattr(inner, attribute)
    assert isinstance(inner, nn.Module)
    return inner


class Model:
    """A module called from outside any other."""

    def __init__(self, module: nn.Module, label: str, loaded: Collection[nn.Module] = ()) -> None:
        self._module = weakref.ref(module)
        self._loaded = loaded
        self.label = label
        self.place: Place | None = None
        self.called = False
        self.announced: frozenset[int] | None = None
        """Identities of the parameters it had when it was last recorded."""
        self.rebuilt: dict[Place | None, tuple[ParameterFact, ...]] = {}
        """Where a module ran whose predecessor there is gone: parameters that `forward` builds each time."""
        self._inner: dict[int, tuple[weakref.ref[nn.Module], Place | None]] = {}
        self._last_at: dict[Place | None, weakref.ref[nn.Module]] = {}
        self._heeding: list[weakref.ref[nn.Module]] | None = None

    @property
    def module(self) -> nn.Module | None:
        """None once the program has dropped it."""
        return self._module()

    def note_inner(self, module: nn.Module, place: Place | None) -> None:
        """A module with parameters of its own ran inside this one."""
        known = self._inner.get(id(module))
        if known is not None and known[0]() is module:
            return
        reference = weakref.ref(module)
        previous = self._last_at.get(place, reference)
        if previous() is None:
            # Its identity is looked at while it lives: a dead parameter's address may be anybody's.
            registered = {id(parameter) for _, parameter in self.parameters()}
            self.rebuilt[place] = tuple(
                parameter_fact(f"{type(module).__name__}.{name}", parameter)
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.requires_grad and id(parameter) not in registered
            )
        self._last_at[place] = reference
        self._inner[id(module)] = (reference, place)
        if len(self._inner) > _MOST_INNER:
            self._inner = {key: item for key, item in self._inner.items() if item[0]() is not None}

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What `named_parameters` gives, without parameters that have no shape yet."""
        module = self.module
        return [] if module is None else [(n, p) for n, p in module.named_parameters() if not is_lazy(p)]

    def strays(self) -> list[tuple[str, nn.Parameter, Place | None]]:
        """Parameters of modules that ran inside it unregistered: kept in a plain list, built in `forward`."""
        registered = {id(parameter) for _, parameter in self.parameters()}
        found = []
        for reference, place in self._inner.values():
            module = reference()
            if module is None:
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in registered and not is_lazy(parameter):
                    found.append((f"{type(module).__name__}.{name}", parameter, place))
        return found

    def seen(self, step: int) -> ModelSeen:
        """What is recorded of it."""
        module = self.module
        assert module is not None
        return ModelSeen(
            step=step,
            place=self.place,
            model=self.label,
            kind=type(module).__name__,
            parameters=tuple(parameter_fact(name, parameter) for name, parameter in self.parameters()),
            modules=tuple(module_fact(name, inner, inner in self._loaded) for name, inner in module.named_modules()),
        )

    def trains(self) -> bool | None:
        """Is any layer that heeds the mode in training mode? None if the model has no such layer."""
        if self._heeding is None or any(reference() is None for reference in self._heeding):
            inside = self.module.modules() if self.module is not None else ()
            self._heeding = [weakref.ref(module) for module in inside if heeds_mode(module)]
        layers = (reference() for reference in self._heeding)
        return any(layer is not None and layer.training for layer in layers) if self._heeding else None


class Objects:
    """Every model and optimizer seen so far, by identity, with a readable label for each."""

    def __init__(self) -> None:
        self._models: dict[int, Model] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Optimizer], str]] = {}
        self._counts: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._room = _FEW_NAMES
        self._loaded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules whose own parameters a checkpoint gave their values. Torch refuses to swap tensors that somebody
        refers to weakly, so it is the modules that are remembered."""
        self.loaded_from: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        """Where in memory the first of the values lay that a module was given."""
        self._trained: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        """The label of the optimizer that last began to train the own parameters of each module."""
        self._continues: dict[str, str] = {}
        """By the label of an optimizer, that of the last one before it that trained layers of the same models."""
        self.order = Order()
        self._recorded: dict[str, list[object]] = {}
        """By the label of an optimizer: what it was like each time it was recorded."""

    def model(self, module: nn.Module) -> Model:
        """The model this module is, known from now on."""
        module = unwrap(module)
        known = self._models.get(id(module))
        if known is None or known.module is not module:
            known = self._models[id(module)] = Model(module, self._label(module), self._loaded)
        return known

    def models(self) -> list[Model]:
        """Models that were called and still exist."""
        gone = [key for key, model in self._models.items() if model.module is None]
        for key in gone:
            del self._models[key]
        return [model for model in self._models.values() if model.called]

    def is_called(self, module: nn.Module) -> bool:
        """Is it a model that the program has called?"""
        module = unwrap(module)
        known = self._models.get(id(module))
        return known is not None and known.called and known.module is module

    def note_loaded(self, modules: Iterable[nn.Module]) -> None:
        """A checkpoint has given the own parameters of these their values."""
        self._loaded.update(modules)

    def is_loaded(self, module: nn.Module) -> bool:
        """Did a checkpoint give any part of it its values?"""
        return any(part in self._loaded for part in module.modules())

    def is_part(self, module: nn.Module) -> bool:
        """Does it live inside a known model?"""
        module = unwrap(module)
        roots = (model.module for model in self.models())
        others = (root for root in roots if root is not None and root is not module)
        return any(part is module for root in others for part in root.modules())

    def optimizer(self, optimizer: Optimizer) -> str:
        """Its label, known from now on."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            label = self._label_of_wrapped(optimizer) or self._label(optimizer)
            self._optimizers = {id(other): (weakref.ref(other), name) for other, name in self.optimizers()}
            known = self._optimizers[id(optimizer)] = (weakref.ref(optimizer), label)
        return known[1]

    def _label_of_wrapped(self, optimizer: Optimizer) -> str:
        """A wrapper shares the groups of what it wraps, as Lightning's does; the two are one optimizer."""
        groups = getattr(optimizer, "param_groups", None)
        shared = (label for other, label in self.optimizers() if other.param_groups is groups)
        return next(shared, "") if groups is not None else ""

    def optimizers(self) -> Iterator[tuple[Optimizer, str]]:
        """Optimizers that still exist, with their labels."""
        for reference, label in list(self._optimizers.values()):
            optimizer = reference()
            if optimizer is not None:
                yield optimizer, label

    def optimizer_seen(self, optimizer: Optimizer, step: int, place: Place | None) -> OptimizerSeen:
        """What is recorded of an optimizer."""
        label = self.optimizer(optimizer)
        self._recorded.setdefault(label, []).append(_outline(optimizer))
        return OptimizerSeen(
            step=step,
            place=place,
            optimizer=label,
            kind=type(optimizer).__name__,
            parameters=self._held(optimizer) if _position(label) <= _MOST_OF_A_KIND else (),
            rates=rates(optimizer),
            groups=group_facts(optimizer),
            state_dtypes=state_dtypes(optimizer),
            models=tuple(model.label for model in self._trained_by(optimizer)) if label in self._continues else (),
            continues=self._continues.get(label, ""),
        )

    def begins_to_train(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step for the first time: note whose work it goes on with."""
        if not self.may_tell(optimizer):
            return
        label, held = self.optimizer(optimizer), {id(parameter) for parameter in parameters_of(optimizer)}
        roots = [model.module for model in self._trained_by(optimizer)]
        inside = [layer for root in roots if root is not None for layer in root.modules()]
        earlier = {self._trained.get(layer, label) for layer in inside} - {label}
        self._continues[label] = next((other for other in reversed(self._continues) if other in earlier), "")
        for layer in inside:
            if any(id(own) in held for own in layer._parameters.values()):
                self._trained[layer] = label

    def was_trained(self, module: nn.Module) -> bool:
        """Has an optimizer with parameters of it stepped, at any time?"""
        return any(layer in self._trained for layer in module.modules())

    def _trained_by(self, optimizer: Optimizer) -> list[Model]:
        """The models that hold parameters of an optimizer, as they were last recorded."""
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        return [model for model in self.models() if model.announced and not held.isdisjoint(model.announced)]

    def _held(self, optimizer: Optimizer) -> tuple[ParameterFact, ...]:
        return tuple(
            parameter_fact(self.name(parameter) or fallback, parameter)
            for fallback, parameter in numbered_parameters(optimizer)
        )

    def has_news(self, optimizer: Optimizer) -> bool:
        """Has it changed in a way not recorded yet: its groups, what is frozen, what it keeps?"""
        label = self.optimizer(optimizer)
        earlier = self._recorded.get(label, [])
        return _position(label) <= _MOST_OF_A_KIND and len(earlier) < _MOST_TIMES and _outline(optimizer) not in earlier

    def may_tell(self, optimizer: Optimizer) -> bool:
        """Not of each one in a program that builds thousands of them."""
        return _position(self.optimizer(optimizer)) <= _MOST_COUNTED

    def learn_names(self, model: Model) -> None:
        """Remember what the model calls its parameters."""
        if len(self._names) > self._room:
            self._names = {id(held): name for known in self.models() for name, held in known.parameters()}
            self._room = max(_FEW_NAMES, 2 * len(self._names))
        for name, parameter in model.parameters():
            self._names[id(parameter)] = name

    def owner(self, parameter: Tensor) -> tuple[str, nn.Module] | None:
        """The module that holds a parameter itself, with its name inside its model."""
        for model in self.models():
            root = model.module
            for name, module in root.named_modules() if root is not None else ():
                if any(own is parameter for own in module._parameters.values()):
                    return name or model.label, module
        return None

    def name(self, parameter: Tensor) -> str:
        """What its model calls it; empty if no model is known to hold it."""
        return self._names.get(id(parameter), "")

    def holder_of(self, parameters: Iterable[Tensor]) -> str | None:
        """The model or optimizer that has exactly these parameters."""
        wanted = {id(parameter) for parameter in parameters}
        for model in self.models():
            if wanted == {id(parameter) for _, parameter in model.parameters()}:
                return model.label
        for optimizer, label in self.optimizers():
            if wanted == {id(parameter) for parameter in parameters_of(optimizer)}:
                return label
        return None

    def _label(self, thing: object) -> str:
        kind = type(thing).__name__
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return kind if count == 1 else f"{kind}#{count}"


def _outline(optimizer: Optimizer) -> object:
    """What must change before an optimizer is recorded again."""
    sizes = tuple((len(group["params"]), group.get("weight_decay")) for group in optimizer.param_groups)
    return sizes, tuple(parameter.requires_grad for parameter in parameters_of(optimizer)), bool(optimizer.state)


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Every tensor in the optimizer's groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def numbered_parameters(optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """The same, each with its position as a name."""
    for count, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            yield f"param_groups[{count}][{position}]", parameter


def rates(optimizer: Optimizer) -> tuple[float, ...]:
    """The learning rates of the groups, where they can be read without waiting for a device."""
    found = (number(group.get("lr")) for group in optimizer.param_groups)
    return tuple(rate for rate in found if rate is not None)


def _position(label: str) -> int:
    """Its number among those of its kind: 3 of `Adam#3`."""
    return int(label.rpartition("#")[2]) if "#" in label else 1


def parameter_fact(name: str, parameter: Tensor) -> ParameterFact:
    """What is recorded of a parameter; its identity is its address, unique while it lives."""
    return ParameterFact(
        name=name,
        key=id(parameter),
        shape=() if is_lazy(parameter) else tuple(parameter.shape),
        dtype=str(parameter.dtype).removeprefix("torch."),
        trainable=parameter.requires_grad,
        stale=not parameter.requires_grad and parameter.grad is not None,
    )
