"""Watches DataLoaders: what they are made of, how often they are gone through, whether passes repeat each other.

Nothing is drawn from an iterator: what the program draws is looked at on its way.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator
from time import perf_counter
from types import CodeType
from typing import Any

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from unstuck.capture.measure.tensors import may_measure
from unstuck.capture.observers.batches import looked_at, named_tensors
from unstuck.capture.observers.evaluations import Evaluations
from unstuck.capture.torch_hooks.internals import LoaderIterator
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.watch import Watch
from unstuck.capture.window import Observer
from unstuck.events import BatchSeen, LoaderSeen, Place

_MOST_LOADERS = 32
_MOST_PASSES = 6
"""Of so many passes the first batch is looked at."""
_FIRST_LOOKS = 3
"""So many batches of the first pass are looked at."""
_SEEDING = frozenset({"seed", "manual_seed"})


class _Source:
    """The loaders built at one line for one data set: many programs build theirs anew for every epoch."""

    def __init__(self, label: str, place: Place | None) -> None:
        self.label = label
        self.place = place
        self.passes = 0
        self.looks = 0
        self.trained = False
        self.first: tuple[float, ...] = ()
        self.same_start = 0
        self.waited = 0.0
        """Seconds, for batches that no backward has followed yet."""
        self.at_start = False
        self.epochs: set[int] = set()
        self.last: LoaderSeen | None = None
        """As it was at the beginning of its last pass."""
        self.told: LoaderSeen | None = None


class Loaders(Observer):
    """Follows every DataLoader from its construction through its passes."""

    def __init__(self, watch: Watch, evaluations: Evaluations) -> None:
        self._watch = watch
        self._evaluations = evaluations
        self._built: dict[int, tuple[weakref.ref[Any], Place | None]] = {}
        self._sources: dict[tuple[Any, ...], _Source] = {}
        self._iterators: dict[int, tuple[weakref.ref[Any], _Source, weakref.ref[Any]]] = {}
        self._drawn: _Source | None = None
        """Whose batch the program drew last."""

    def attach(self, patches: Patches) -> None:
        """Watch the class, so that nothing is written onto loaders."""
        patches.around(DataLoader, "__init__", self._building, self._was_built)
        patches.around(DataLoader, "__iter__", self._beginning, self._began)
        if LoaderIterator is not None:
            patches.around(LoaderIterator, "__next__", self._drawing, self._drew)

    def backward(self) -> None:
        """A backward begins: the loader drawn from last is one to train on."""
        source = self._drawn
        if source is None:
            return
        self._watch.window.timings.data += source.waited  # what an evaluation waits for is no part of a step
        source.waited = 0.0
        if not source.trained:
            source.trained = True
            self._tell(source)

    def finish(self) -> None:
        """The run ended."""
        for source in self._sources.values():
            self._tell(source)

    def _building(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0], self._watch.places.here()) if self._watch.is_listening() else None

    def _was_built(self, built: tuple[Any, Place | None], result: Any, error: BaseException | None) -> None:
        loader, place = built
        if error is None:
            self._built = {key: known for key, known in self._built.items() if known[0]() is not None}
            self._built[id(loader)] = (weakref.ref(loader), place)

    def _beginning(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._watch.is_listening() else None

    def _began(self, loader: Any, iterator: Any, error: BaseException | None) -> None:
        source = self._source(loader) if error is None else None
        if source is None:
            return
        self._iterators = {key: known for key, known in self._iterators.items() if known[0]() is not None}
        self._iterators[id(iterator)] = (weakref.ref(iterator), source, weakref.ref(loader))
        source.passes += 1
        source.at_start = True
        source.looks = _FIRST_LOOKS if source.passes == 1 else int(source.passes <= _MOST_PASSES)
        source.last = self._seen(source, loader)
        if not source.trained:
            self._evaluations.expected()
        if source.passes in (1, 3):
            self._tell(source)

    def _source(self, loader: Any) -> _Source | None:
        built = self._built.get(id(loader))
        place = built[1] if built is not None and built[0]() is loader else None
        dataset = getattr(loader, "dataset", None)
        key = (place, id(dataset), type(loader.sampler).__name__) if place else (id(loader),)
        if key not in self._sources:
            if len(self._sources) >= _MOST_LOADERS:
                return None
            count = len(self._sources) + 1
            label = type(loader).__name__ + (f"#{count}" if count > 1 else "")
            self._sources[key] = _Source(label, place or self._watch.places.here())
        return self._sources[key]

    def _drawing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Source, float] | None:
        known = self._iterators.get(id(args[0]))
        if known is None or known[0]() is not args[0]:
            return None
        self._drawn = source = known[1]
        return (source, perf_counter()) if source.looks > 0 or self._watch.window.sampled else None

    def _drew(self, drawing: tuple[_Source, float], batch: Any, error: BaseException | None) -> None:
        source, began = drawing
        source.waited += perf_counter() - began
        if source.looks <= 0:
            return
        source.looks -= 1
        if error is not None or not may_measure():
            source.looks = 0
            return
        tensors = [(name, tensor) for name, tensor in named_tensors(batch) if tensor.device.type == "cpu"]
        found = looked_at(tensors) if tensors else None
        if found is None or not found.fingerprint:
            return
        step = self._watch.window.steps
        same = source.at_start and source.passes > 1 and found.fingerprint == source.first
        if source.at_start and source.passes == 1:
            source.first = found.fingerprint
        source.at_start = False
        source.same_start += same
        self._watch.tell(
            BatchSeen(
                step=step,
                place=source.place,
                loader=source.label,
                inputs=found.inputs,
                duplicates=found.duplicates,
                constant=found.constant,
                examples=found.examples,
            )
        )

    def _tell(self, source: _Source) -> None:
        """Tell of a loader as it is known now, unless that has been told."""
        if source.last is None:
            return
        now = msgspec.structs.replace(source.last, trained=source.trained, same_start=source.same_start)
        if now != source.told:
            source.told = now
            self._watch.tell(now)

    def _seen(self, source: _Source, loader: Any) -> LoaderSeen:
        dataset = loader.dataset.dataset if isinstance(loader.dataset, Subset) else loader.dataset
        known = source.last
        return LoaderSeen(
            step=self._watch.window.steps,
            place=source.place,
            loader=source.label,
            dataset=type(loader.dataset).__name__,
            length=_length(loader.dataset),
            batch_size=loader.batch_size if isinstance(loader.batch_size, int) else None,
            sampler=type(loader.sampler).__name__,
            workers=loader.num_workers,
            drop_last=bool(loader.drop_last),
            passes=source.passes,
            generators=tuple(_copied_generators(loader, dataset, source.passes)),
            seeded_alike=known.seeded_alike if known else self._where(_seeded_alike(loader)),
            seeded_again=known.seeded_again if known else self._where(_seeded_again(dataset)),
        )

    def _where(self, found: tuple[str, int, int] | None) -> Place | None:
        return self._watch.places.of_file(*found) if found is not None else None


def _length(dataset: Any) -> int | None:
    """Of the data sets of torch only: the length of another may be expensive to ask for, as that of a chain of them."""
    known = type(dataset).__module__.startswith(("torch.", "torchvision."))
    if not known or isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _copied_generators(loader: Any, dataset: Any, passes: int) -> Iterator[str]:
    """Generators of the data set that `__getitem__` draws from, and of which each worker has a copy."""
    again = not loader.persistent_workers and passes > 1
    if not (loader.num_workers > 1 or (loader.num_workers == 1 and again)) or loader.worker_init_fn is not None:
        return
    draws = _code(getattr(type(dataset), "__getitem__", None))
    names = draws.co_names if draws is not None else ()
    if "get_worker_info" in names or "seed" in names:
        return
    for name, value in getattr(dataset, "__dict__", {}).items():
        if name in names and isinstance(value, _generator_kinds()):
            yield name


def _seeded_alike(loader: Any) -> tuple[str, int, int] | None:
    """Where `worker_init_fn` seeds with a number, and with nothing that differs between workers."""
    code = _code(loader.worker_init_fn) if loader.num_workers > 1 else None
    if code is None or {"initial_seed", "get_worker_info"}.intersection(code.co_names):
        return None
    return _constant_seed(code, only=True)


def _seeded_again(dataset: Any) -> tuple[str, int, int] | None:
    code = _code(getattr(type(dataset), "__getitem__", None))
    return _constant_seed(code) if code is not None else None


def _code(function: Any) -> CodeType | None:
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _constant_seed(code: CodeType, only: bool = False) -> tuple[str, int, int] | None:
    """File, line and column of `seed(7)` or `manual_seed(7)`; `only` if there is no other seeding in it."""
    if not _SEEDING.intersection(code.co_names):
        return None
    import dis

    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    found = []
    for seed, given, call in zip(steps, steps[1:], steps[2:], strict=False):
        if seed.argval in _SEEDING:
            constant = given.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and isinstance(given.argval, int)
            found.append(seed if constant and call.opname.startswith("CALL") else None)
    certain = [step for step in found if step is not None]
    if not certain or (only and len(certain) < len(found)):
        return None
    spot = certain[0].positions
    return (code.co_filename, spot.lineno or 0, (spot.col_offset or 0) + 1) if spot is not None else None


def _generator_kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    return (random.Random, torch.Generator, *((numpy.RandomState, numpy.Generator) if numpy is not None else ()))
