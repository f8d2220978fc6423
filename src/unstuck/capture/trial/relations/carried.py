"""Does what one batch left behind change the answers for the next one, though that has other examples in other places?

A state that is carried over is right where each batch continues the one before. Where rows are drawn at random, example
5 of a batch has nothing to do with example 5 of the next. What all examples share, as a queue, a codebook or running
statistics, is not looked at: only a state with a row for each example, in which the earlier one changes the later one.

Rows are known to be drawn at random if a shuffling loader gave another batch between the two calls, or if `randint`
drew the rows, or where they begin, that were taken from a longer tensor meanwhile. All else may be parts of one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.passes import change
from unstuck.capture.live_objects.restore import same_pass, untouched
from unstuck.capture.trial.lab import Arguments, Lab, copied, map_tensors
from unstuck.capture.trial.model_probe import as_one
from unstuck.capture.trial.relations.guard import guarded
from unstuck.findings.relations import Answer, Number, Relation, State

LARGEST = 10**7
"""Numbers of a state, or of what a model is given, that are kept from one batch to the next."""
MOST_MODELS = 2
MATTERS = 0.01
"""The change of an answer, in spreads of the answers, from which a state matters."""
REGISTRIES = ("_parameters", "_buffers", "_modules")
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
POOL = 2
"""So many times the rows of a batch a tensor has at least, if rows are drawn from it."""


class Call(NamedTuple):
    """One call of a model: what it was given, and the state it began and ended with."""

    inputs: Any
    begun_with: list[Tensor]
    ended_with: list[Tensor]
    outputs: list[Tensor]


class Carried:
    """Keeps the first and the last call of a step, and compares them with the first call of the next step."""

    def __init__(self, lab: Lab, note: Callable[[Answer], None]) -> None:
        self._note = note
        self._first: dict[int, Call] = {}
        self._last: dict[int, Call] = {}
        self._models: dict[int, nn.Module] = {}
        self._open: dict[int, tuple[Any, list[Tensor]]] = {}
        self._shuffled: WeakSet[Any] = WeakSet()
        """Iterators of loaders that shuffle."""
        self._is_new_batch = False
        self._drawn: list[Tensor] = []
        self._rows: list[Tensor] = []
        """What was drawn since the last step, and which of it chose rows."""
        self._steps = 0
        self._answers: list[Answer] = []
        self.is_over = False
        lab.wrap(DataLoader, "__iter__", self._iterating)
        lab.wrap(_BaseDataLoaderIter, "__next__", self._loading)
        lab.wrap(torch, "randint", self._drawing)
        lab.wrap(Tensor, "__getitem__", self._indexing)
        lab.change_calls(self._begins)
        lab.change_outputs(self._ends)
        lab.when_step_ends.append(self._step_ended)
        self._lab = lab

    def _iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: DataLoader[Any]) -> Any:
            batches = original(loader)
            if isinstance(_sampler(loader), SHUFFLING):
                self._shuffled.add(batches)
            return batches

        return iterate

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(batches: Any) -> Any:
            self._is_new_batch = self._is_new_batch or batches in self._shuffled
            return original(batches)

        return load

    def _drawing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def randint(*args: Any, **kwargs: Any) -> Any:
            drawn = original(*args, **kwargs)
            if not self.is_over and not self._lab.is_inside_module and isinstance(drawn, Tensor):
                self._drawn.append(drawn)
            return drawn

        return randint

    def _indexing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def taken(tensor: Tensor, index: Any) -> Any:
            if self._drawn and not self.is_over and not self._lab.is_inside_module:
                rows = _chosen_by(index)
                for drawn in self._drawn:
                    if rows is not None and drawn is rows and len(tensor) >= POOL * drawn.numel():
                        self._rows.append(drawn)
            return original(tensor, index)

        return taken

    def _begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        if not self.is_over and torch.is_grad_enabled() and (id(module) in self._models or not self._is_full):
            self._guarded(lambda: self._begin(module, args, kwargs))
        return args, kwargs

    def _guarded(self, action: Callable[[], list[Answer]]) -> None:
        for answer in guarded(self._lab, Relation.STATE, action):
            self._answers.append(answer)
            self._note(answer)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Answer]:
        key = id(module)
        self._models[key] = module
        inputs, state = as_one(module, copied(args), copied(kwargs)), _state_of(module)
        if sum(tensor.numel() for tensor in (*tensors_in(_list(inputs)), *state)) > LARGEST:
            return []
        self._open[key] = inputs, state
        if self._steps and key in self._last and key in self._first:
            first = self._first.pop(key)
            with self._lab.aside(), untouched(module):
                return [self._answer(module, first, self._last[key], inputs, state)]
        return []

    @property
    def _is_full(self) -> bool:
        return len(self._models) >= MOST_MODELS

    def _ends(self, module: nn.Module, output: Any) -> Any:
        opened = self._open.pop(id(module), None)
        if opened is not None and not self.is_over:
            self._guarded(lambda: self._end(module, Call(*opened, _state_of(module), _copies(output))))
        return output

    def _end(self, module: nn.Module, done: Call) -> list[Answer]:
        self._last[id(module)] = done
        if not self._steps:
            self._first.setdefault(id(module), done)
        return []

    def _step_ended(self) -> None:
        self._steps += 1
        if self._steps > 1 and not self.is_over:
            self.is_over = True
            if not self._answers:
                self._note(_is(State.DOES_NOT_APPLY, "Not tested: no model was called in two steps."))
            self._first.clear()
            self._last.clear()
            self._models.clear()
        self._is_new_batch = False
        self._drawn.clear()
        self._rows.clear()

    def _answer(self, module: nn.Module, first: Call, last: Call, inputs: Any, state: list[Tensor]) -> Answer:
        name = type(module).__name__
        tensors = list(tensors_in(_list(inputs)))
        handed = _handed_over(last.outputs, tensors)
        kept = bool(state) and _are_same(last.ended_with, state) and not _are_same(first.begun_with, state)
        if handed is None and not kept:
            return _is(State.HOLDS, f"{name} begins the second batch as it began the first.", name)
        if not self._is_new_batch and not any(_are_rows_of(tensors, rows) for rows in self._rows):
            return _is(State.DOES_NOT_APPLY, f"Not tested: each batch of {name} may continue the one before.")
        if handed is not None:
            return _of_argument(module, inputs, tensors, handed)
        return _of_attribute(module, first.inputs, inputs)


def _is(state: State, sentence: str, name: str = "", form: str = "", **measures: Number) -> Answer:
    return Answer(relation=Relation.STATE, state=state, sentence=sentence, form=form, subject=name, measures=measures)


def _chosen_by(index: Any) -> Tensor | None:
    """The tensor by which the first axis is indexed, or whose elements it is indexed by, or slices begin with."""
    first = index[0] if isinstance(index, tuple) and index else index
    first = first.start if isinstance(first, slice) else first
    if not isinstance(first, Tensor):
        return None
    return first._base if first.dim() == 0 and first._base is not None else first


def _are_rows_of(inputs: list[Tensor], rows: Tensor) -> bool:
    """Did these choose the examples of a batch, without being data themselves?"""
    is_given = any(
        tensor.numel() == rows.numel() and torch.equal(tensor.flatten(), rows.flatten()) for tensor in inputs
    )
    return not is_given and any(len(tensor) == rows.numel() for tensor in inputs if tensor.dim())


def _copies(output: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_in(output) if tensor.numel() <= LARGEST]


def _list(inputs: Any) -> list[Any]:
    return list(inputs.values()) if isinstance(inputs, dict) else list(inputs)


def _sampler(loader: DataLoader[Any]) -> Any:
    own = getattr(loader, "sampler", None)
    return own if isinstance(own, SHUFFLING) else getattr(getattr(loader, "batch_sampler", None), "sampler", own)


def _state_of(module: nn.Module) -> list[Tensor]:
    """Copies of the tensors that modules keep as attributes, also in containers, and of buffers; no statistics."""
    found: list[Tensor] = []
    for inner in module.modules():
        found += [] if isinstance(inner, _NormBase) else inner.buffers(recurse=False)
        kept = (value for name, value in vars(inner).items() if name not in REGISTRIES)
        found += [t for value in kept for t in tensors_in(value) if not isinstance(t, nn.Parameter)]
    return [tensor.detach().clone() for tensor in found if tensor.layout is torch.strided and not tensor.is_meta]


def _are_same(ones: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    first, second = list(ones), list(others)
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _handed_over(outputs: list[Tensor], given: list[Tensor]) -> int | None:
    """Which of the tensors a model is given is what it returned for the batch before."""
    for index, tensor in enumerate(given):
        if not tensor.is_floating_point() or tensor.dim() < 2 or float(tensor.std(correction=0)) == 0:
            continue
        if any(one.shape == tensor.shape and torch.equal(one, tensor) for one in outputs):
            return index
    return None


def _passes(module: nn.Module, *inputs: Any) -> list[Tensor]:
    """The answers for the last of these batches, after the others."""
    with same_pass(module), torch.no_grad():
        for one in inputs:
            outputs = [t.detach().clone() for t in tensors_in(call(module, one)) if t.is_floating_point()]
    return outputs


def _of_argument(module: nn.Module, inputs: Any, tensors: list[Tensor], handed: int) -> Answer:
    """The loop hands the state over: does another one change the answers?"""
    name = type(module).__name__
    numbers = iter(range(len(tensors)))
    others = map_tensors(inputs, lambda t: torch.zeros_like(t) if next(numbers) == handed else t)
    module.eval()
    usual = _passes(module, inputs)
    most = change(usual, _passes(module, others))
    is_repeated = change(usual, _passes(module, inputs)) == 0
    if len(tensors) < 2 or not is_repeated or most < MATTERS:
        return _is(
            State.DOES_NOT_APPLY, f"Not tested: what {name} is handed over does not change its answers by itself."
        )
    shape = " x ".join(map(str, tensors[handed].shape))
    return _is(
        State.BROKEN,
        f"{name} is given a state ({shape}) that it returned for the batch before, though rows are drawn at random; it "
        f"changes the answers by up to {most:.2g} times their spread.",
        name,
        "argument",
        change=most,
        shape=shape,
    )


def _of_attribute(module: nn.Module, before: Any, inputs: Any) -> Answer:
    """The module keeps the state: does one example of the earlier batch change that in the same place of the later?"""
    name = type(module).__name__
    for mode in (False, True):
        module.train(mode)
        rows = _rows_that_change(module, before, inputs)
        if rows is None:
            continue
        changed, count, most = rows
        if changed == [0] and most >= MATTERS:
            return _is(
                State.BROKEN,
                f"{name} keeps a state from one batch to the next, though rows are drawn at random: with another first "
                f"example in the earlier batch, the answer for the first of {count} examples in the later one changes "
                f"by up to {most:.2g} times the spread of the answers, and no other.",
                name,
                "attribute",
                change=most,
                examples=count,
            )
        if len(changed) > 1:
            return _is(State.DOES_NOT_APPLY, f"Not tested: what {name} keeps is shared by all examples.")
    return _is(State.HOLDS, f"What {name} keeps from one batch hardly changes the answers for the next.", name)


def _rows_that_change(module: nn.Module, before: Any, inputs: Any) -> tuple[list[int], int, float] | None:
    """Which answers change with the first example of the earlier batch, of how many, and how far."""
    others = map_tensors(before, _with_another_first)
    usual, again = _passes(module, before, inputs), _passes(module, before, inputs)
    if not usual or change(usual, again) > 0:
        return None
    now = _passes(module, others, inputs)
    count = next((len(tensor) for tensor in tensors_in(_list(inputs)) if tensor.dim()), 0)
    pairs = [(a, b) for a, b in zip(usual, now, strict=False) if a.shape == b.shape and a.dim() and len(a) == count]
    if count < 3 or not pairs:
        return None
    rows = [row for row in range(count) if any(_differs(a, b, row) for a, b in pairs)]
    return rows, count, max((change([a], [b]) for a, b in pairs), default=0.0)


def _with_another_first(tensor: Tensor) -> Tensor:
    if not tensor.dim() or len(tensor) < 2 or tensor.requires_grad:
        return tensor
    changed = tensor.clone()
    changed[0] = tensor[_unlike_first(tensor)]
    return changed


def _unlike_first(tensor: Tensor) -> int:
    return next((row for row in range(1, len(tensor)) if not torch.equal(tensor[row], tensor[0])), 0)


def _differs(one: Tensor, other: Tensor, row: int) -> bool:
    spread = float(one.float().std(correction=0)) or 1.0
    return float((one[row] - other[row]).abs().max()) > 1e-4 * spread
