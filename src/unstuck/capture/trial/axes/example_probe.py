"""Finds out which axis of the data holds the examples, and follows these through one iteration of the loop."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from unstuck.capture.live_objects.arguments import tensors_in
from unstuck.capture.live_objects.examples import filled_axis
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks import hooks
from unstuck.capture.trial.axes import shadows
from unstuck.capture.trial.axes.follower import Follower
from unstuck.capture.trial.lab import Lab, is_model
from unstuck.lazy import pattern

FEWEST = 4
"""Examples in a batch: in fewer, axes cannot be kept apart."""
ON_PURPOSE = pattern(
    r"(?i)mini_?batch|batch_?(std|mix|attention|former)|std_?dev|moe|expert|router|graph|gcn|gat(conv|layer|net)"
    r"|gnn|sage|intersample|prototyp|memory_?bank|set_?transformer|in_?context|episod"
)
"""Classes that look at the whole batch by design."""
SEQUENCES = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class _Inputs(hooks.OperationCalls):
    """Remembers what operations of one iteration were given that did not come from one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[Any, ...], Any] = {}

    def called(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the tensors, and keep their memory."""
        for value in (*args, *kwargs.values()):
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta:
                    self.seen.setdefault(key_of(tensor), tensor.untyped_storage())
        return operation(*args, **kwargs)


def key_of(tensor: Tensor) -> tuple[Any, ...]:
    """The same only for the same part of the same memory."""
    return (shadows.address(tensor), tensor.storage_offset(), tuple(tensor.shape))


class ExampleProbe:
    """In the second iteration it learns which tensors stay the same, in the third it follows examples.

    The note `mixing` has what was found: `Mixing` of `findings.mixing`.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._mode: _Inputs | Follower | None = None
        self._end_mode: Callable[[], None] = lambda: None
        self._same: _Inputs | None = None
        self._shapes: list[tuple[tuple[int, ...], ...]] = []
        """Of the tensors that the model was given in each iteration, while gradients were recorded."""
        self._first: list[Tensor] = []
        self._from_loader: int | None = None
        """How many examples a loader gave, in the latest batch of this iteration."""
        self._is_shuffled = False
        self._layers_first: set[bool] = set()
        """What `batch_first` is in the layers that the model has."""
        self._depth = 0
        self._names: dict[int, str] = {}
        self._is_over = False
        lab.wrap(nn.Module, "__call__", self._calling)
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._before_backward)
        lab.wrap(DataLoader, "__iter__", self._loading)
        lab.when_step_ends.append(self._step_ended)
        lab.when_trial_ends.append(self._leave)

    # The loop.

    def _step_ended(self) -> None:
        self._leave()
        if self._is_over:
            return
        if self._same is None:
            self._same = _Inputs()
            self._enter(self._same)
        elif not self._is_over:
            self._begin()

    def _enter(self, mode: _Inputs | Follower) -> None:
        self._mode = mode
        self._end_mode = hooks.enter(mode)

    def _leave(self) -> None:
        mode, self._mode = self._mode, None
        if mode is None:
            return
        self._end_mode()
        if isinstance(mode, Follower):
            self._is_over = True
            self._lab.notes["mixing"] = msgspec.to_builtins(mode.results())

    def _before_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._leave()
            return original(*args, **kwargs)

        return backward

    def _begin(self) -> None:
        """Follow the next iteration, if it is known what an example is."""
        found = self._layout()
        if found is None:
            self._is_over = True
            return
        examples, axis = found
        same = self._same.seen if self._same is not None else {}
        whole = any(key_of(tensor) in same for tensor in self._first)
        constant = (lambda tensor: False) if whole else (lambda tensor: key_of(tensor) in same)
        follower = Follower(examples, axis, Places(self._lab.stage), constant)
        follower.are_drawn = self._is_shuffled
        self._enter(follower)

    def _layout(self) -> tuple[int, int] | None:
        """How many examples there are, and on which axis; None if that is not certain."""
        shapes = next((shapes for shapes in reversed(self._shapes) if shapes), ())
        if not shapes or not shapes[0]:
            return None
        first = shapes[0]
        if self._from_loader is not None and self._from_loader >= FEWEST:
            sides = [axis for axis, size in enumerate(first) if size == self._from_loader]
            return (self._from_loader, sides[0]) if sides and sides[0] < 2 else None
        could_be_time = len(first) == 3 or (len(first) == 2 and self._are_ids)
        others = {shape for _, _, shape in self._same.seen} if self._same is not None else set()
        is_told = first[1:2] != first[:1] and bool({first[:1], (first[0], 1)} & others)
        axis = 0
        if could_be_time and not is_told:
            time = self._time_axis()
            if time is None and len(self._layers_first) != 1:
                return None
            axis = 1 - time if time is not None else 0 if True in self._layers_first else 1
        return (first[axis], axis) if first[axis] >= FEWEST else None

    def _time_axis(self) -> int | None:
        """Along which axis sequences run: where they are filled up, or where their lengths differ between batches."""
        filled = filled_axis(self._first[0]) if self._first else None
        if filled is not None:
            return filled
        sizes = [{shapes[0][axis] for shapes in self._shapes if shapes and len(shapes[0]) > 1} for axis in (0, 1)]
        varying = [axis for axis in (0, 1) if len(sizes[axis]) > 1]
        return varying[0] if len(varying) == 1 else None

    # Data.

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def batches(loader: DataLoader[Any]) -> Iterator[Any]:
            iterator = iter(original(loader))
            while True:
                with self._mode.aside() if isinstance(self._mode, Follower) else contextlib.nullcontext():
                    try:
                        batch = next(iterator)
                    except StopIteration:
                        return
                if not self._is_over and torch.is_grad_enabled():
                    with contextlib.suppress(Exception):
                        self._loaded(loader, batch)
                yield batch

        return batches

    def _loaded(self, loader: DataLoader[Any], batch: Any) -> None:
        tensors = [tensor for tensor in tensors_in(batch) if tensor.dim()]
        size = loader.batch_size
        if not tensors or not isinstance(size, int):
            self._from_loader = None
            return
        self._is_shuffled = not isinstance(loader.sampler, SequentialSampler)
        firsts = {tensor.shape[0] for tensor in tensors}
        if len(firsts) == 1 and (first := firsts.pop()) <= size:
            self._from_loader = first
        elif all(size in tensor.shape[:2] for tensor in tensors):
            self._from_loader = size
        else:
            self._from_loader = None
        mode = self._mode
        if isinstance(mode, Follower) and self._from_loader == mode.examples:
            for tensor in tensors:
                sides = [axis for axis, side in enumerate(tensor.shape[:2]) if side == mode.examples]
                if sides and (len(sides) == 1 or mode.axis == 0):
                    mode.seed(tensor, sides[0])

    # Models.

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_over or not is_model(module):
                return original(module, *args, **kwargs)
            outermost = self._depth == 0
            try:
                is_silent = self._begins(module, args, kwargs, outermost)
            except Exception:
                is_silent = False
                self._failed()
            mode = self._mode if isinstance(self._mode, Follower) else None
            self._depth += 1
            if mode is not None:
                mode.inside += 1
                mode.is_silent += is_silent
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1
                if mode is not None:
                    mode.inside -= 1
                    mode.is_silent -= is_silent

        return call

    def _failed(self) -> None:
        self._lab.notes["failed"] = traceback.format_exc()[-2000:]
        if os.environ.get("UNSTUCK_RAISE"):
            raise

    def _begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outermost: bool) -> bool:
        """A model or a layer is called; True if what happens inside of it needs no look."""
        follower = self._mode if isinstance(self._mode, Follower) else None
        if outermost:
            self._names = {id(part): name for name, part in module.named_modules()}
            if torch.is_grad_enabled():
                self._learn(module, args, kwargs)
            if follower is not None:
                follower.keeps([*module.parameters(), *module.buffers()])
                if torch.is_grad_enabled():
                    for tensor in tensors_in((args, kwargs)):
                        if not tensor.requires_grad:
                            follower.seed(tensor)
        if follower is None:
            return False
        if ON_PURPOSE.search(type(module).__name__):
            return True
        if isinstance(module, SEQUENCES) and not follower.is_silent:
            given = args[0] if args else kwargs.get("query", kwargs.get("input"))
            return follower.sequence_layer(self._names.get(id(module), ""), module, given)
        return False

    def _learn(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        data = [tensor for tensor in tensors_in((args, kwargs)) if not tensor.requires_grad and tensor.dim()]
        self._shapes.append(tuple(tuple(tensor.shape) for tensor in data))
        self._first = data[:1]
        self._are_ids = bool(data) and not data[0].is_floating_point()
        firsts = (getattr(part, "batch_first", None) for part in module.modules() if isinstance(part, SEQUENCES))
        self._layers_first |= {first for first in firsts if isinstance(first, bool)}

    _are_ids = False
