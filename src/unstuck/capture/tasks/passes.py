"""What modules hand to each other in one pass: a state that is cut off, or values whose gradients go elsewhere."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.detect.graph import Node, is_see_through, nodes_from, operation
from unstuck.capture.measure.tensors import is_plain, tensors_in
from unstuck.capture.window import Watch
from unstuck.events import GradientRerouted, Place, StateDetached

_FEWEST_CALLS = 4
_MOST_MODULES = 200
_MOST_OUTPUTS = 8
"""The last ones, with which what enters a module is compared."""
_MOST_NODES = 3000
_LARGEST = 2**22
_DEEPEST = 8
_LOOKUPS = ("Embedding", "Index", "IndexSelect", "Gather", "Mm")


class _Loop:
    """One module, called again and again in one pass."""

    __slots__ = ("cut", "ends", "last", "linked", "module", "place", "root")

    def __init__(self, module: nn.Module, root: nn.Module, place: Place | None) -> None:
        self.module, self.root, self.place = weakref.ref(module), weakref.ref(root), place
        self.last: list[Tensor] = []
        self.ends: list[list[Node]] = []
        self.cut = self.linked = 0


class Passes:
    """Follows the modules of one window."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._loops: dict[int, _Loop] = {}
        self._outputs: list[tuple[str, Tensor]] = []
        self._rerouted = 0

    def ran(self, module: nn.Module, root: nn.Module, arguments: Any, output: Any, place: Place | None) -> None:
        """A module was called, with gradients."""
        given = [one for one in tensors_in(arguments, 3) if is_plain(one) and one.dim() > 0]
        made = [one for one in tensors_in(output) if is_plain(one) and one.dim() > 0]
        self._loop(module, root, given, made, place)
        if self._rerouted < 3:
            self._route(module, root, given, made, place)

    def _loop(
        self, module: nn.Module, root: nn.Module, given: list[Tensor], made: list[Tensor], place: Place | None
    ) -> None:
        if id(module) not in self._loops and len(self._loops) >= _MOST_MODULES:
            return
        loop = self._loops.setdefault(id(module), _Loop(module, root, place))
        again = [(old, new) for old in loop.last for new in given if _is_same(old, new)]
        loop.linked += any(new.requires_grad for _, new in again)
        loop.cut += bool(again) and not any(new.requires_grad for _, new in again)
        loop.last = [one for one in made if one.requires_grad]
        loop.ends.append([one.grad_fn for one in loop.last if one.grad_fn is not None])

    def _route(
        self, module: nn.Module, root: nn.Module, given: list[Tensor], made: list[Tensor], place: Place | None
    ) -> None:
        kind = type(module).__name__
        known = [*self._outputs, *((kind, one) for one in given if one.requires_grad)]
        for tensor in (*(one for one in given if one.requires_grad), *made):
            if tensor.grad_fn is None or not _ends_in_sum(tensor.grad_fn) or tensor.numel() > _LARGEST:
                continue
            source = next((label for label, other in known if _has_values_of(tensor, other)), None)
            if source is not None:
                self._rerouted += 1
                self._watch.tell(
                    GradientRerouted(
                        step=self._watch.window.steps,
                        place=place,
                        module=_name_in(root, module),
                        kind=kind,
                        source=source,
                    )
                )
                break
        fresh = [(kind, one) for one in made if one.requires_grad and one.dim() > 1 and one.numel() > 8]
        self._outputs = [*self._outputs, *fresh][-_MOST_OUTPUTS:]

    def backward(self, nodes: Collection[Node], is_whole: bool) -> None:
        """The loss of this pass is known."""
        reachable = set(nodes)
        for loop in self._loops.values():
            calls = len(loop.ends)
            if calls < _FEWEST_CALLS or not loop.cut or loop.linked or not is_whole:
                continue
            reached = sum(any(node in reachable for node in ends) for ends in loop.ends)
            module, root = loop.module(), loop.root()
            if reached and module is not None and root is not None:
                self._watch.tell(
                    StateDetached(
                        step=self._watch.window.steps,
                        place=loop.place,
                        module=_name_in(root, module),
                        kind=type(module).__name__,
                        calls=calls,
                        cut=loop.cut,
                        reached=reached,
                    )
                )
        self.forget()

    def forget(self) -> None:
        """What follows is another pass."""
        self._loops.clear()
        self._outputs.clear()


def _name_in(root: nn.Module, module: nn.Module) -> str:
    return next((name for name, each in root.named_modules() if each is module), "")


def _is_same(old: Tensor, new: Tensor) -> bool:
    """Is it the same tensor, perhaps detached?"""
    return old is new or (old.data_ptr() == new.data_ptr() and old.shape == new.shape and old.dtype is new.dtype)


def _ends_in_sum(node: Node) -> bool:
    """Was it made by adding something without gradients to rows of a table?"""
    for _ in range(_DEEPEST):
        children = [child for child, _ in node.next_functions]
        if operation(node) in ("Add", "Sub"):
            live = [child for child in children if child is not None]
            return len(live) == 1 and len(children) == 2 and _is_lookup(live[0])
        if not is_see_through(node) or len(children) != 1 or children[0] is None:
            return False
        node = children[0]
    return False


def _is_lookup(node: Node) -> bool:
    """Are these rows of a parameter, chosen by an index or by a product with ones and zeros?"""
    chosen = False
    for _ in range(_DEEPEST):
        name = operation(node)
        chosen = chosen or name in _LOOKUPS
        if "AccumulateGrad" in name:
            return chosen
        children = [child for child, _ in node.next_functions if child is not None]
        if len(children) != 1 or not (is_see_through(node) or name in _LOOKUPS):
            return False
        node = children[0]
    return False


def _has_values_of(tensor: Tensor, other: Tensor) -> bool:
    """The same values, but for rounding, and no way for gradients to get there."""
    if (
        other is tensor
        or other.grad_fn is None
        or _is_lookup(other.grad_fn)
        or other.shape != tensor.shape
        or other.data_ptr() == tensor.data_ptr()
    ):
        return False
    few = tensor.detach().reshape(-1)[:8], other.detach().reshape(-1)[:8]
    if not torch.allclose(*few, rtol=1e-3, atol=1e-5):
        return False
    own, theirs = tensor.detach(), other.detach()
    scale = float(theirs.std())
    if not scale > 0 or float((own - theirs).abs().max()) > 1e-4 * scale:
        return False
    nodes = nodes_from(tensor.grad_fn, _MOST_NODES)
    return len(nodes) < _MOST_NODES and other.grad_fn not in nodes
