"""Finds the data sets of a script while it runs: what it trains on, and what it evaluates on.

The loader whose batch came before a backward is trained on, though a teacher or an average of the weights may have been
given that batch first; without loaders, the tables are whose rows the model is
given. Other loaders, and data sets and tables with a name such as `test_x`, are for evaluation, as is whatever the
model is given without gradients. Passes over the training data are cut short meanwhile, so that an evaluation comes.
"""

from __future__ import annotations

import itertools
import re
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from unstuck.capture.data_sets.sources import Batch, Source, bare, likely_target, of_one_size, sampler_of, tensors_of
from unstuck.capture.data_sets.variables import FEWEST, Variables, is_of_evaluation, is_of_training
from unstuck.capture.guard import Guard
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.internals import LoaderIterator
from unstuck.capture.trial.lab import Arguments, Lab, is_data
from unstuck.capture.trial.stand_ins.boundary import Compared, boundary_of
from unstuck.events import Place
from unstuck.findings.data_sets import Role

FIRST = 2
"""Steps after which the training data are known."""
PASS = 3
"""Batches of a pass that is cut short."""
MOST_STEPS = 400
MOST_DRAWS = 8
STAYS = 8
"""Steps in which a table must stay what it is."""
LOOKS = 4
"""Steps in which variables are looked through."""
ROWS, MORE_ROWS = 3, 8
LARGEST = 2**26
"""Numbers of a table in which rows are looked for."""


class Draw:
    """What one iterator of a loader gave since the last backward."""

    def __init__(self, iterator: Any, dataset: Any) -> None:
        self.iterator = weakref.ref(iterator)
        self.dataset = dataset
        self.batch: Any = None
        self.count = 0
        self.is_evaluated = False
        """Did a call without gradients, or in evaluation mode, follow?"""


class Finder:
    """Looks on until it knows what it wants, or so many seconds have passed."""

    def __init__(self, lab: Lab, seconds: float) -> None:
        self._lab = lab
        self._until = time.monotonic() + seconds
        self._places = Places(lab.stage)
        self._built: dict[int, tuple[DataLoader[Any], Place | None]] = {}
        self._loader_of: dict[int, DataLoader[Any]] = {}
        """By the id of the data set: the loader that was iterated last."""
        self._draws: list[Draw] = []
        """Since the last backward."""
        self._steady: weakref.WeakSet[Any] = weakref.WeakSet()
        """Iterators that gave one batch between two backwards."""
        self._trained: dict[int, tuple[Any, Any]] = {}
        self._along: dict[int, Any] = {}
        """Data sets of which one batch is drawn in each step, though others are drawn from after it."""
        self._evaluated: dict[int, Any] = {}
        """Data sets whose batches came before a call without gradients or in evaluation mode."""
        self._given: Tensor | None = None
        self._wanted: Tensor | None = None
        self._tables: dict[str, Tensor] = {}
        self._training_tables: Batch = {}
        self._evaluation_tables: dict[str, Batch] = {}
        self._names: dict[int, str] = {}
        self._sets: dict[int, tuple[str, Any]] = {}
        self._training_names: tuple[str, str] = ("", "")
        self._looks = self._seen_again = 0
        self._changed: set[str] = set()
        """Tables that were made again with other numbers."""
        self.is_over = False
        guard = Guard(lambda text: lab.notes.update(data_trouble=text))
        self._noticed = guard.protect("its calls", self._notice)
        self._looked = guard.protect("its data sets", self._training_seen)
        self._judged = guard.protect("its steps", self._step_ended)
        lab.wrap(DataLoader, "__init__", self._building)
        lab.wrap(DataLoader, "__iter__", self._beginning)
        if LoaderIterator is not None:
            lab.wrap(LoaderIterator, "__next__", self._drawing)
        lab.change_calls(self._called)
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._before_backward)
        # Around that: the target of a loss that is written out is known when its backward begins.
        boundary_of(lab).compared.append(self._compared)
        lab.when_step_ends.append(self._judged)

    def sources(self) -> list[Source]:
        """What is trained on comes first."""
        self.is_over = True
        training = self._training()
        if training is None:
            return []
        found = [training, *self._evaluation(training)]
        taken: dict[str, int] = {}
        for one in found:  # each has a name of its own
            taken[one.name] = taken.get(one.name, 0) + 1
            one.name += f" ({taken[one.name]})" if taken[one.name] > 1 else ""
        return found

    def _training(self) -> Source | None:
        if self._trained:
            dataset, batch = next(reversed(self._trained.values()))
            loader = self._loader_of.get(id(dataset))
            source = self._of_loader(loader, dataset, Role.TRAINING)
            source.target = self._target_in(batch)
            return source
        if self._training_tables:
            return Source(self._training_names[0], Role.TRAINING, tables=self._training_tables)
        return None

    def _of_loader(self, loader: DataLoader[Any] | None, dataset: Any, role: Role) -> Source:
        place = self._built.get(id(loader), (None, None))[1] if loader is not None else None
        name = self._name_of(loader, dataset) or (f"the loader at {place}" if place else "")
        return Source(name or f"a {type(dataset).__name__}", role, loader=loader, dataset=dataset, place=place)

    def _name_of(self, loader: DataLoader[Any] | None, dataset: Any) -> str:
        """The variable that holds it; empty if none does."""
        return self._names.get(id(loader)) or self._names.get(id(dataset)) or ""

    def _target_in(self, batch: Any) -> str:
        """Which tensor of a batch the loss compares with."""
        tensors, _ = of_one_size(tensors_of(batch))
        if self._wanted is not None:
            if self._given is not None and _same(self._wanted, self._given):
                return ""  # an autoencoder's
            for name, tensor in tensors.items():
                if _same(tensor, self._wanted):
                    return name
        return likely_target(tensors) if len(tensors) > 1 else ""

    def _evaluation(self, training: Source) -> Iterator[Source]:
        seen: set[int] = set()
        if training.tables is None:
            yield from self._of_loaders(training, seen)
            yield from self._of_sets(training, seen)
            return
        for name, tables in self._evaluation_tables.items():
            yield Source(name, Role.EVALUATION, tables=tables)

    def _of_loaders(self, training: Source, seen: set[int]) -> Iterator[Source]:
        loaders = [loader for loader, _ in self._built.values()]
        loaders += [one for one in self._loader_of.values() if all(one is not known for known in loaders)]
        for loader in loaders:
            dataset = loader.dataset
            source = self._of_loader(loader, dataset, Role.EVALUATION)
            is_same = dataset is training.dataset and _same_sampler(loader, training.loader)
            if loader is training.loader or (id(dataset) in self._trained and not is_same and not _has_own(loader)):
                continue
            name = self._name_of(loader, dataset)
            if is_same and not is_of_evaluation(name):
                continue  # to know how right it is on its training data, on purpose
            if is_of_training(name) or not self._is_for_evaluation(loader, name):
                continue
            if _is_of_another_fold(name, training.name):
                continue
            key = id(dataset) if not _has_own(loader) else id(loader)
            if key in seen:
                continue
            seen.add(key)
            source.target = training.target
            yield source

    def _is_for_evaluation(self, loader: DataLoader[Any], name: str) -> bool:
        """By its name, or by what the program did with it. A second loader may be one to train on, too."""
        return is_of_evaluation(name) or id(loader.dataset) in self._evaluated

    def _of_sets(self, training: Source, seen: set[int]) -> Iterator[Source]:
        below = {id(bare(dataset)) for _, dataset in self._sets.values() if bare(dataset) is not dataset}
        below.add(id(bare(training.dataset)))
        for name, dataset in self._sets.values():
            known = id(dataset) in seen or id(dataset) in below or id(dataset) in self._trained
            if known or not is_of_evaluation(name):
                continue
            seen.add(id(dataset))
            source = Source(name, Role.EVALUATION, loader=None, dataset=dataset)
            source.collate = getattr(training.loader, "collate_fn", None)
            source.target = training.target
            yield source

    def _building(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def build(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            if not self.is_over:
                self._built[id(loader)] = loader, self._places.here()

        return build

    def _beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(loader: Any) -> Any:
            batches = original(loader)
            dataset = getattr(loader, "dataset", None)
            if self.is_over or dataset is None:
                return batches
            self._loader_of[id(dataset)] = loader
            is_cut = self._is_trained(dataset) and torch.is_grad_enabled()
            return _cut(batches) if is_cut else batches

        return begin

    def _drawing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(iterator: Any) -> Any:
            try:
                batch = original(iterator)
            except StopIteration:
                # All of it was evaluated: the backward that comes is of something else.
                self._draws = [one for one in self._draws if one.iterator() is not iterator or not one.is_evaluated]
                raise
            if not self.is_over:
                self._add_draw(iterator, batch)
            return batch

        return draw

    def _add_draw(self, iterator: Any, batch: Any) -> None:
        dataset = getattr(iterator, "_dataset", None)
        if dataset is None:
            return
        known = next((one for one in self._draws if one.iterator() is iterator), None) or Draw(iterator, dataset)
        known.batch = batch
        known.count += 1
        known.is_evaluated = False
        self._draws = [*(one for one in self._draws if one is not known), known][-MOST_DRAWS:]

    def _is_trained(self, dataset: Any) -> bool:
        return id(dataset) in self._trained or id(dataset) in self._along

    def _called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if not self.is_over:
            self._noticed(module, args, kwargs)
        return args, kwargs

    def _notice(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What a model is given, in training and in evaluation."""
        given = [tensor for tensor in tensors_of((args, kwargs)).values() if is_data(tensor) and tensor.dim() > 0]
        trains = torch.is_grad_enabled() and module.training
        if trains and given and any(p.requires_grad for p in module.parameters()):
            self._given = max(given, key=Tensor.numel).detach()
        elif given and not trains and self._training_tables:
            self._evaluated_on(given[0])
        if not trains and self._draws:
            last = self._draws[-1]
            last.is_evaluated = True
            if not self._is_trained(last.dataset):
                self._evaluated[id(last.dataset)] = last.dataset

    def _compared(self, compared: Compared) -> None:
        if not self.is_over:
            self._wanted = compared.target.detach()

    def _before_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.is_over:
                self._looked()
            return original(*args, **kwargs)

        return backward

    def _training_seen(self) -> None:
        draws, self._draws = self._draws, []
        trained = self._trained_on(draws)
        if trained is not None:
            self._evaluated.pop(id(trained.dataset), None)
            self._trained[id(trained.dataset)] = trained.dataset, trained.batch
        for one in draws:
            if one is not trained and self._is_steady(one):
                self._evaluated.pop(id(one.dataset), None)
                self._along[id(one.dataset)] = one.dataset
        self._steady.update(iterator for one in draws if one.count == 1 and (iterator := one.iterator()) is not None)
        if self._training_tables and not self._trained and self._seen_again < STAYS:
            self._look_again()
        if self._looks < LOOKS or not (self._trained or self._training_tables):
            self._looks += 1
            if self._looks <= LOOKS or self._looks % 16 == 0:
                self._look()

    def _trained_on(self, draws: list[Draw]) -> Draw | None:
        """What a backward is of: the last batch. That may have been given to a model without gradients before, such
        as a teacher, an average of the weights or a generator; or others, that an evaluation drew, came after it."""
        for one in reversed(draws):
            if not one.is_evaluated:
                return one
            if id(one.dataset) not in self._along and (self._is_steady(one) or self._is_given(one)):
                return one
        return None

    def _is_steady(self, draw: Draw) -> bool:
        """Is one batch drawn in each step? An evaluation draws all of them, or begins again."""
        name = self._name_of(self._loader_of.get(id(draw.dataset)), draw.dataset)
        return draw.count == 1 and draw.iterator() in self._steady and not is_of_evaluation(name)

    def _is_given(self, draw: Draw) -> bool:
        """To the model that is trained."""
        given = self._given
        return given is not None and any(_same(tensor, given) for tensor in tensors_of(draw.batch).values())

    def _look_again(self) -> None:
        """Is the table still what it was? What is made again for each step, such as what an agent has just seen,
        is not a data set."""
        name, first = self._training_names[0], self._training_tables["inputs"]
        table = Variables(self._places).tables.get(name)
        stays = table is not None and table.shape == first.shape
        if table is not None and stays and table.data_ptr() != first.data_ptr():
            stays = first.numel() <= LARGEST and bool(torch.equal(table, first))
        self._seen_again += 1
        if not stays:
            self._training_tables, self._evaluation_tables, self._seen_again = {}, {}, 0
            self._changed.add(name)

    def _look(self) -> None:
        """Through the variables of the program."""
        variables = Variables(self._places)
        for key, (name, loader) in variables.loaders.items():
            self._names.setdefault(key, name)
            self._built.setdefault(key, (loader, None))
        for key, (name, dataset) in variables.sets.items():
            self._names.setdefault(key, name)
            self._sets.setdefault(key, (name, dataset))
        if not self._trained and self._given is not None and not self._training_tables:
            self._tables = variables.tables
            with torch.no_grad():
                self._find_tables()

    def _find_tables(self) -> None:
        """The table that has the rows which the model is given, and that of their targets."""
        assert self._given is not None
        rows = self._given[:ROWS].cpu()
        holding: list[tuple[str, Tensor, Tensor]] = []
        for name, table in self._tables.items():
            places = _rows_in(table, rows) if name not in self._changed else None
            if places is not None:
                holding.append((name, table, places))
        # Of a whole and its part, the part is what is trained on.
        for name, table, places in sorted(holding, key=lambda one: len(one[1])):
            wanted = self._wanted
            targets = {
                other: tensor
                for other, tensor in self._tables.items()
                if other != name and len(tensor) == len(table) and wanted is not None
            }
            target = next(
                (
                    other
                    for other, tensor in targets.items()
                    if wanted is not None and _begins_with(tensor, places, wanted)
                ),
                "",
            )
            if wanted is not None and targets and not target:
                continue
            self._training_names = name, target
            self._training_tables = {"inputs": table} | ({"target": self._tables[target]} if target else {})
            self._find_evaluation_tables(table)
            return

    def _find_evaluation_tables(self, trained: Tensor) -> None:
        alike = {
            name: table
            for name, table in self._tables.items()
            if is_of_evaluation(name) and self._is_like_training(table, trained)
        }
        # Masks may look like images: what is named as the target of another table is not one of inputs.
        targets = {self._renamed(name) for name in alike} - {""}
        for name, table in alike.items():
            if name not in targets:
                self._evaluation_tables[name] = self._with_target(name, table)

    def _renamed(self, name: str) -> str:
        """What the targets of this table would be called, by the names of those of training; or nothing."""
        inputs, target = _difference(*self._training_names) if self._training_names[1] else ("", "")
        return name.replace(inputs, target) if inputs and inputs in name else ""

    def _is_like_training(self, table: Tensor, trained: Tensor) -> bool:
        same_shape = table.shape[1:] == trained.shape[1:] and table.dtype == trained.dtype
        return same_shape and table.data_ptr() != trained.data_ptr()

    def _with_target(self, name: str, table: Tensor) -> Batch:
        """With the table of its targets: one of its length, and like the target of training."""
        target = self._training_tables.get("target")
        if target is None:
            return {"inputs": table}
        fitting = [
            other
            for other, tensor in self._tables.items()
            if len(tensor) == len(table)
            and tensor.shape[1:] == target.shape[1:]
            and tensor.dtype == target.dtype
            and tensor.data_ptr() not in (table.data_ptr(), target.data_ptr())
        ]
        renamed = self._renamed(name)
        found = renamed if renamed in fitting else fitting[0] if len(fitting) == 1 else ""
        return {"inputs": table} | ({"target": self._tables[found]} if found else {})

    def _evaluated_on(self, given: Tensor) -> None:
        """The model is given rows of another table without gradients."""
        trained = self._training_tables["inputs"]
        known = [tables["inputs"] for tables in self._evaluation_tables.values()]
        if given.shape[1:] != trained.shape[1:] or len(given) < ROWS or known:
            return
        with torch.no_grad():
            rows = given[torch.linspace(0, len(given) - 1, MORE_ROWS).long()].cpu()
            if _rows_in(trained, rows) is not None:
                return  # how right it is on its training data
            for name, table in sorted(self._tables.items(), key=lambda one: len(one[1])):
                if self._is_like_training(table, trained) and _rows_in(table, rows) is not None:
                    self._evaluation_tables[name] = self._with_target(name, table)
                    return

    def _step_ended(self) -> None:
        steps = self._lab.steps
        late = time.monotonic() > self._until or steps >= MOST_STEPS
        if steps < FIRST and not late:
            return
        is_known = self._trained or (self._training_tables and self._seen_again >= STAYS)
        if late or (is_known and self._has_evaluation()):
            self._lab.has_enough = True

    def _has_evaluation(self) -> bool:
        training = self._training()
        return training is not None and any(True for _ in self._evaluation(training))


def _cut(batches: Iterator[Any]) -> Iterator[Any]:
    """The first of them. A generator, as others keep weak references to what a loader gives, and an islice has none."""
    yield from itertools.islice(batches, PASS)


def _has_own(loader: DataLoader[Any]) -> bool:
    """Has it a choice of examples of its own, such as a SubsetRandomSampler?"""
    return hasattr(sampler_of(loader), "indices")


def _same_sampler(loader: DataLoader[Any], other: DataLoader[Any] | None) -> bool:
    return not (_has_own(loader) or (other is not None and _has_own(other)))


def _is_of_another_fold(name: str, training: str) -> bool:
    """`val_loaders[1]` next to `train_loaders[0]`."""
    one, other = re.findall(r"\[(\d+)\]", name), re.findall(r"\[(\d+)\]", training)
    return bool(one) and bool(other) and one[0] != other[0]


def _same(one: Tensor, other: Tensor) -> bool:
    """The same numbers, in whatever shape and type?"""
    if one.numel() != other.numel():
        return False
    return bool(torch.equal(one.detach().reshape(-1).cpu().double(), other.detach().reshape(-1).cpu().double()))


def _rows_in(table: Tensor, rows: Tensor) -> Tensor | None:
    """The places of these rows in a table; None if any is not there."""
    if table.dim() == 0 or not len(rows) or table.numel() > LARGEST or len(table) < FEWEST:
        return None
    width = rows[0].numel()
    if width == 0 or table.numel() != len(table) * width:
        return None
    flat, wanted = table.detach().reshape(len(table), -1).cpu(), rows.reshape(len(rows), -1)
    kind = torch.float32 if wanted.is_floating_point() or flat.is_floating_point() else torch.int64
    flat, wanted = flat.to(kind), wanted.to(kind)
    places = []
    for row in wanted:
        found = (flat[:, 0] == row[0]).nonzero().flatten()
        found = found[(flat[found] == row).all(1)]
        if not len(found):
            return None
        places.append(int(found[0]))
    return torch.tensor(places)


def _begins_with(table: Tensor, places: Tensor, wanted: Tensor) -> bool:
    """Are these rows of a table the first targets?"""
    picked = table[places.to(table.device)].detach().cpu().double().reshape(len(places), -1)
    if wanted.dim() == 0 or len(wanted) < len(places):
        return False
    first = wanted[: len(places)].cpu().double().reshape(len(places), -1)
    return picked.shape == first.shape and bool(torch.equal(picked.float(), first.float()))


def _difference(one: str, other: str) -> tuple[str, str]:
    """What two names differ in: `x_train` and `y_train` in `x` and `y`."""
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    return one, other
