"""Observes which rows of the data a program picks, and whether those that meet in one loss were picked in one order.

A batch is `x[index]` and `y[index]`. Where the two are picked by different indices, each example is compared with
what belongs to another one. Rows are followed through `tensor[...]`, and recognized again where they arrive: a model's
inputs, a loss's targets, the weights in a formula.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, operation, saved, saved_list
from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure
from unstuck.capture.places import TRANSPARENT
from unstuck.capture.players.head import Head
from unstuck.capture.window import Watch
from unstuck.events import Place, RowsCompared

_FEWEST = 8
_MOST_ROWS = 2**20
_LARGEST = 2**22
_MOST_KNOWN = 256
_MOST_FRESH = 48
_MOST_LOOKS = 60
_MOST_PAIRS = 8
_MOST_NUMBERS = 8192
_MOST_NAMES = 200
_SAME = 0.9
"""The share of rows that must be at the same place, or at the same distance, to have been picked together."""
_EXACT = 1e-6
_CONSTANTS = {
    "Mul": ("self", "other"),
    "Div": ("other",),
    "MseLoss": ("target",),
    "L1Loss": ("target",),
    "SmoothL1Loss": ("target",),
    "HuberLoss": ("target",),
    "NllLoss": ("target",),
    "BinaryCrossEntropy": ("target",),
    "BinaryCrossEntropyWithLogits": ("target",),
    "Gather": ("index",),
}
"""What operations of a formula keep of the numbers that are not computed by a model."""


class _Pick(NamedTuple):
    """Rows of a tensor."""

    source: Any
    """A weak reference to the tensor they were picked from; there is one such reference for each tensor."""
    version: int
    length: int
    """How many rows that has."""
    rows: Tensor
    place: Place | None
    companions: tuple[tuple[Any, int], ...]
    """Tensors of the same length that were there: references to them, and their versions."""
    before: _Pick | None
    """How the source itself had been picked."""
    cut: tuple[int, int] | None = None
    """The two axes that its rows were before they were put into one, such as steps and environments."""


class _Tally:
    """What became of the rows that two lines pick."""

    def __init__(self, first: _Pick, second: _Pick) -> None:
        self.first, self.second = first, second
        self.looks = self.apart = self.crossed = 0
        self.partner: dict[int, int] = {}
        self.again = self.changed = 0

    def add(self, first: Tensor, second: Tensor) -> None:
        for one, other in zip(first.tolist(), second.tolist(), strict=True):
            known = self.partner.get(one)
            if known is not None:
                self.again += 1
                self.changed += known != other
            elif len(self.partner) < _MOST_NUMBERS:
                self.partner[one] = other


class Rows:
    """Follows rows from where they are picked to the loss in which they meet."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._known: dict[int, tuple[Any, _Pick]] = {}
        """By the identity of what was picked, with a weak reference to it."""
        self._fresh: list[tuple[Tensor, _Pick]] = []
        """What was picked in this window."""
        self._inputs: list[_Pick] = []
        self._targets: list[_Pick] = []
        self._tallies: dict[tuple[Place | None, Place | None], _Tally] = {}
        self._looks = 0

    @property
    def is_done(self) -> bool:
        """Have enough losses been looked at?"""
        return self._looks >= _MOST_LOOKS

    def picked(self, tensor: Tensor, index: Any, result: Tensor) -> None:
        """A tensor was indexed."""
        if tensor.requires_grad or not tensor.is_cpu or tensor.dim() == 0 or tensor.layout is not torch.strided:
            return
        if tensor.is_inference() or not may_measure():  # inference tensors have no versions
            return
        caller = _caller()
        if caller is None or not self._watch.places.is_users(caller.f_code):
            return
        length = len(tensor)
        if not _FEWEST <= length <= _MOST_ROWS or tensor.is_meta:
            return
        rows = _rows(index, length)
        if rows is None or len(rows) < _FEWEST or len(result) != len(rows):
            return
        parent = self._known.get(id(tensor))
        before = parent[1] if parent is not None and parent[0]() is tensor else None
        large = 2 * len(rows) > length
        pick = _Pick(
            source=weakref.ref(tensor),
            version=tensor._version,
            length=length,
            rows=rows.clone(),
            place=self._watch.places.here(),
            companions=tuple(_tensors_around(caller, length)) if large else (),
            before=before,
            cut=_cut(tensor),
        )
        if len(self._known) >= _MOST_KNOWN:
            self._known = {key: one for key, one in self._known.items() if one[0]() is not None}
        if len(self._known) < _MOST_KNOWN:
            self._known[id(result)] = (weakref.ref(result), pick)
        if result.numel() <= _LARGEST and self._watch.window.sampled:
            self._fresh = [*self._fresh[1 - _MOST_FRESH :], (result.detach(), pick)]

    def model_ran(self, arguments: tuple[Any, ...]) -> None:
        """A model was called to be trained, in a sampled window."""
        for part in arguments:
            values = part.values() if isinstance(part, dict) else part
            for value in values:
                pick = self._pick_of(value) if isinstance(value, Tensor) else None
                if pick is not None:
                    self._inputs.append(pick)

    def compared(self, target: Tensor) -> None:
        """A loss of torch was given these targets."""
        pick = self._pick_of(target)
        if pick is not None:
            self._targets.append(pick)

    def backward(self, head: Head, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if self.is_done or not self._fresh:
            return
        found = [*self._targets, *self._constants(head.nodes)]
        constants = list({id(pick): pick for pick in found}.values())
        if not constants or any(map(_reorders, head.nodes)):
            return
        self._looks += 1
        for number, (own, reference) in enumerate(_meetings(constants, self._inputs)):
            if number >= _MOST_PAIRS:
                break
            self._note(own, reference, place)

    def window_began(self) -> None:
        """What follows belongs to another batch."""
        self._fresh.clear()
        self._inputs.clear()
        self._targets.clear()

    def finish(self) -> None:
        """No more is looked at."""
        for tally in self._tallies.values():
            if tally.apart or tally.crossed:
                self._tell(tally)
        self._tallies.clear()
        self._known.clear()

    def _note(self, own: _Pick, reference: _Pick, place: Place | None) -> None:
        pair = _levels(own, reference)
        if pair is None:
            return
        key = own.place, reference.place
        if key not in self._tallies and len(self._tallies) >= _MOST_PAIRS:
            return
        tally = self._tallies.setdefault(key, _Tally(reference, own))
        tally.looks += 1
        if not _is_together(*pair):
            tally.apart += 1
            tally.add(pair[1], pair[0])
        elif _is_crossed(own.cut, reference.cut):
            tally.crossed += 1
        if tally.looks in (5, 15):
            self._tell(tally)

    def _tell(self, tally: _Tally) -> None:
        self._watch.tell(
            RowsCompared(
                step=self._watch.window.steps,
                place=tally.second.place,
                other=tally.first.place,
                looks=tally.looks,
                apart=tally.apart,
                rows=len(tally.second.rows),
                length=tally.second.length,
                pairs=len(tally.partner),
                partners=len(set(tally.partner.values())),
                again=tally.again,
                changed=tally.changed,
                shuffled=_is_shuffled(tally.first) != _is_shuffled(tally.second),
                crossed=tally.crossed,
                axes=tally.second.cut or (),
            )
        )

    def _pick_of(self, tensor: Tensor) -> _Pick | None:
        """How a tensor was picked: the very one, or one with the same numbers, up to a factor and a constant."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if not self._fresh or tensor.dim() == 0 or tensor.requires_grad or not tensor.is_cpu:
            return None
        if tensor.numel() > _LARGEST or not (is_plain(tensor) or is_whole(tensor)):
            return None
        own: Tensor | None = None
        each: _Pick
        for picked, each in reversed(self._fresh):
            if picked.numel() == tensor.numel() and (is_plain(picked) or is_whole(picked)):
                own = _means(tensor, len(each.rows)) if own is None or len(own) != len(each.rows) else own
                if own is not None and _is_multiple(own, _means(picked, len(each.rows))):
                    return each
        return None

    def _constants(self, nodes: Iterable[Node]) -> Iterator[_Pick]:
        lengths = {len(pick.rows) for _, pick in self._fresh}
        for node in nodes:
            kept = [saved(node, name) for name in _CONSTANTS.get(operation(node), ())]
            if operation(node) == "Index":
                kept = saved_list(node, "indices")[1:]
            for value in kept:
                if value is not None and value.dim() and (len(value) in lengths or value.numel() in lengths):
                    pick = self._pick_of(value.detach())
                    if pick is not None:
                        yield pick


def _rows(index: Any, length: int) -> Tensor | None:
    """The numbers of the rows that an index picks; None if it picks anything else."""
    if type(index) is tuple:
        if not index or any(type(one) not in (slice, int, type(Ellipsis)) for one in index[1:]):
            return None
        index = index[0]
    if type(index) is slice:
        try:
            chosen = range(*index.indices(length))
        except TypeError:
            return None
        return torch.arange(chosen.start, chosen.stop, chosen.step) if len(chosen) else None
    if type(index) is list:
        if len(index) < _FEWEST or not all(type(one) is int for one in index):
            return None
        index = torch.tensor(index)
    elif type(index).__module__ == "numpy" and getattr(index, "ndim", 0) == 1 and index.dtype.kind in "iub":
        index = torch.as_tensor(index)
    if not isinstance(index, Tensor) or index.dim() != 1 or not index.is_cpu or not is_whole(index):
        return None
    if index.dtype is torch.bool:
        return index.nonzero().reshape(-1)
    rows = index.long()
    return torch.where(rows < 0, rows + length, rows)


def _cut(tensor: Tensor) -> tuple[int, int] | None:
    """The first two axes of what this is a flattened view of; None if its rows are none of two axes."""
    whole = tensor._base
    if whole is None or whole.dim() < 2 or whole.numel() != tensor.numel() or not tensor.is_contiguous():
        return None
    first, second = whole.shape[:2]
    return (first, second) if first * second == len(tensor) and whole.is_contiguous() else None


def _is_crossed(own: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    """Were the same two axes put into one in the other order?"""
    return own is not None and other is not None and own == other[::-1] and own[0] != own[1] and min(own) > 1


def _caller() -> FrameType | None:
    """Who indexed the tensor."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != TRANSPARENT:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def _tensors_around(frame: FrameType, length: int) -> Iterator[tuple[Any, int]]:
    """Tensors of this length among the variables there, and their versions."""
    found = list(frame.f_locals.items())[:_MOST_NAMES]
    own = next((value for name, value in found if name == "self"), None)
    if own is not None and type(own).__dictoffset__:
        found += list(vars(own).items())[:_MOST_NAMES]
    for _, value in found:
        if type(value) is Tensor and value.dim() and len(value) == length and not value.is_inference():
            yield weakref.ref(value), value._version


def _means(tensor: Tensor, rows: int) -> Tensor | None:
    """One number for each row."""
    if tensor.numel() == 0 or tensor.numel() % rows:
        return None
    return tensor.detach().reshape(rows, -1).double().mean(1)


def _is_multiple(one: Tensor, other: Tensor | None) -> bool:
    if other is None or len(one) != len(other):
        return False
    one, other = one - one.mean(), other - other.mean()
    size = float(one.square().sum() * other.square().sum())
    return size > 0 and 1 - float(one @ other) ** 2 / size < _EXACT


def _reorders(node: Node) -> bool:
    """Does a formula put rows of what a model computed into another order?"""
    name = operation(node)
    if name in ("IndexSelect", "Sort", "Flip", "MaskedSelect", "Topk"):
        return True
    if name != "Index":
        return False
    found = [index for index in saved_list(node, "indices") if index is not None]
    first = found[0] if found else None
    if len(found) < 2 or first is None:
        return True
    return not torch.equal(first.reshape(-1), torch.arange(first.numel()))


def _ancestors(pick: _Pick) -> Iterator[tuple[_Pick, Tensor]]:
    """A pick and what it was picked from, with the numbers of its rows there."""
    rows, each = pick.rows, pick
    yield each, rows
    while each.before is not None:
        each = each.before
        rows = each.rows[rows]
        yield each, rows


def _levels(one: _Pick, other: _Pick) -> tuple[Tensor, Tensor] | None:
    """The rows of both, in sources that belong together: as far back as the sources are known to have been there at
    the same time. None if there are none."""
    found: tuple[Tensor, Tensor] | None = None
    if one.length == other.length and len(one.rows) == len(other.rows):
        found = one.rows, other.rows
    for early, rows in _ancestors(one):
        for late, others in _ancestors(other):
            if early.length != late.length or (early is one and late is other) or early.source is late.source:
                continue
            if _were_together(early, late) and len(rows) == len(others):
                found = rows, others
    return found


def _were_together(one: _Pick, other: _Pick) -> bool:
    """When rows of one were picked, was the source of the other there, as it was when its own rows were picked?"""
    return any(
        alive is second.source and version == second.version
        for first, second in ((one, other), (other, one))
        for alive, version in first.companions
    )


def _is_shuffled(pick: _Pick) -> bool:
    """Was most of the data put into another order before these rows were picked?"""
    for each, _ in _ancestors(pick):
        rows = each.rows
        if 2 * len(rows) > each.length and bool((rows.diff() < 0).any()) and len(set(rows.tolist())) == len(rows):
            return True
    return False


def _is_together(one: Tensor, other: Tensor) -> bool:
    """Are these the same rows, or at one distance, as of a next step?"""
    distance = one - other
    usual = distance.mode().values
    return float((distance == usual).double().mean()) >= _SAME


def _sources(pick: _Pick) -> set[int]:
    """The identities of all that it was picked from, one after the other. The references live as long as the pick."""
    return {id(each.source) for each, _ in _ancestors(pick)}


def _agree(one: _Pick, other: _Pick) -> bool | None:
    """Were these picked in the same order? None if they do not belong together."""
    pair = _levels(one, other)
    return None if pair is None else _is_together(*pair)


def _meetings(constants: list[_Pick], inputs: list[_Pick]) -> Iterator[tuple[_Pick, _Pick]]:
    """Each constant of a loss with what shows the order it should have: an input of the model, else what two others
    agree on. Of the parts of a mixture, one of which is in order, only that one."""
    in_order = {key for own in constants if any(_agree(own, given) for given in inputs) for key in _sources(own)}
    for own in constants:
        related = [given for given in inputs if _agree(own, given) is not None]
        matching = [given for given in related if _agree(own, given)]
        if matching:
            yield own, matching[-1]
        elif related and not in_order.intersection(_sources(own)):
            yield own, related[-1]
        elif not related:
            others = [one for one in constants if not _sources(one) & _sources(own) and _agree(own, one) is not None]
            alone = len(others) > 1 and not any(_agree(own, one) for one in others)
            if alone and all(_agree(others[0], one) for one in others[1:]):
                yield own, others[0]
