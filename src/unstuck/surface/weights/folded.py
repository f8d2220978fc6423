"""Many points of a model's plane in one pass: the points are folded into the batch.

Layers without weights treat the rows of a batch alike, so that they need not know to which point a row belongs. Layers
with weights are given those of each point. What the first of them makes of the batch is affine in the distances: it
is known at the start and along each way, once for the whole plane. A model that mixes the rows of its batch, or uses
its weights in another way, raises or gives other values, which whoever asks has to check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.torch_hooks.hooks import FunctionCalls

Weights = Mapping[str, Tensor]
MOST_COMPARED = 9
"""Numbers in a pooling window, up to which comparing shifted views is quicker."""
NARROW = 16
"""Outputs of a linear layer, below which it is quicker with the batch last."""


class Unfoldable(Exception):
    """The model does something that cannot be done for many points at once here."""


class Workspace:
    """Memory for what a pass computes, used again in the next: allocating it again can take longer than computing."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._taken = 0

    def rewind(self) -> None:
        """A new pass begins, and asks for the same in the same order."""
        self._taken = 0

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor | None:
        """Memory of this shape, or None where autograd needs to keep what is computed."""
        if torch.is_grad_enabled():
            return None
        if self._taken == len(self._kept):
            self._kept.append(like.new_empty(0))
        kept, size = self._kept[self._taken], math.prod(shape)
        if kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = self._kept[self._taken] = like.new_empty(size)
        self._taken += 1
        return kept[:size].view(*shape)


class Folded:
    """A model and its loss at many points, given as one tensor of distances per way."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        inputs: Any,
        targets: Any,
        ways: Sequence[Weights],
    ) -> None:
        self._model, self._loss_fn, self._targets = model, loss_fn, targets
        self._inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        self.rows = _common_rows(self._inputs)
        named = [(name, weight) for name, weight in model.named_parameters() if name in ways[0]]
        moving = [(name, weight) for name, weight in named if any(bool(way[name].any()) for way in ways)]
        self.moving = {id(weight): weight for _, weight in moving}
        self.corners = {
            id(weight): torch.stack([weight.detach(), *(way[name].to(weight) for way in ways)])
            for name, weight in moving
        }
        """The weight at the start and the ways it goes, by the identity of the weight."""
        self.flat = {key: corners.flatten(1) for key, corners in self.corners.items()}
        self.known: dict[tuple[Any, ...], Tensor] = {}
        self.space = Workspace()
        self.is_chain = _is_chain(model)
        """What a layer gives is used by the next one only, which may write over it."""
        self._is_cross_entropy = _is_plain_cross_entropy(loss_fn, targets)
        self._repeated = targets
        """The classes of the batch, once for every point."""

    def __call__(self, *distances: Tensor) -> Tensor:
        """The loss at every point."""
        self.space.rewind()
        with Fold(self, torch.stack([torch.ones_like(distances[0]), *distances], dim=1)):
            output = self._output()
        if not isinstance(output, Tensor) or len(output) != len(distances[0]) * self.rows:
            raise Unfoldable("the output has no row for every row of the batch")
        output = output.reshape(-1, self.rows, *output.shape[1:])
        if self._is_cross_entropy and output.dim() == 3:
            return self._cross_entropy(output)
        return torch.func.vmap(lambda one: self._loss_fn(one, self._targets), randomness="same")(output)

    def _cross_entropy(self, output: Tensor) -> Tensor:
        if self._repeated.shape[0] != output.shape[0] * self.rows:
            self._repeated = self._targets.repeat(output.shape[0])
        rows = F.cross_entropy(output.flatten(0, 1), self._repeated, reduction="none")
        return rows.view(-1, self.rows).mean(1)

    def _output(self) -> Any:
        # Fresh buffers: a batch norm that counts its batches must not change those of the model.
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        if not buffers:
            return self._model(*self._inputs)
        return torch.func.functional_call(self._model, buffers, self._inputs)

    def is_batch(self, value: Tensor) -> bool:
        """Is it the batch or a view of it, which is the same in every pass?"""
        return any(value is own or value._base is own for own in self._inputs)


class Fold(FunctionCalls):
    """Active while the model runs: gives layers the weights of each point."""

    def __init__(self, folded: Folded, along: Tensor) -> None:
        super().__init__()
        self._folded, self._along = folded, along
        """(points, 1 + ways): how much of the start and of each way makes the weights of a point."""
        self._rows = folded.rows

    def called(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if not self._moves(args) and not self._moves((*options.values(),)):
            return self._without_weights(func, args, options)
        if func is F.embedding and args[0].shape[0] == self._rows:
            call = (func, args[2:], options)
            return self._first(lambda w, _: func(args[0], w, *args[2:], **options), args[1], None, args[0], call)
        if func not in _LAYERS or options or not isinstance(args[0], Tensor):
            raise Unfoldable(f"{getattr(func, '__name__', func)} uses weights that move")
        given, weight, bias, *rest = (*args, None)[: max(3, len(args))]
        if given.shape[0] == self._rows:
            return self._first(lambda w, b: func(given, w, b, *rest), weight, bias, given, (func, *rest))
        return self._later(func, given, weight, bias, rest)

    def _without_weights(self, func: Any, args: Any, options: Any) -> Any:
        if func is F.max_pool2d:
            largest = self._largest(*args, **options)
            return func(*args, **options) if largest is None else largest
        activation = _ACTIVATIONS.get(func)
        if activation is None or any(options.values()) or torch.is_grad_enabled() or not args[0].is_contiguous():
            return func(*args, **options)
        is_ours = self._folded.is_chain and args[0].shape[0] != self._rows
        return activation(args[0], args[0] if is_ours else self._folded.space.take(args[0].shape, args[0]))

    def _moves(self, values: Sequence[Any]) -> bool:
        """Is any of these a weight that moves?"""
        moving = self._folded.moving
        return any(id(value) in moving or (isinstance(value, (list, tuple)) and self._moves(value)) for value in values)

    def _first(self, layer: Any, weight: Any, bias: Any, given: Tensor, call: tuple[Any, ...]) -> Tensor:
        """A layer that is given the same at every point: a sum of what it gives at the start and along each way."""
        corners, biases = self._corners(weight), self._corners(bias)
        is_batch = self._folded.is_batch(given)
        key = (id(weight), given.data_ptr(), given.shape, given.stride(), repr(call)) if is_batch else ()
        known = self._folded.known.get(key)
        if known is None:
            # A single point may pass here with what an earlier layer made, through which gradients go.
            with torch.set_grad_enabled(torch.is_grad_enabled() and not is_batch):
                known = torch.stack([layer(*pair) for pair in zip(corners, biases, strict=True)])
        if is_batch:
            self._folded.known[key] = known
        space = self._folded.space.take((len(self._along), known[0].numel()), known)
        return torch.mm(self._along, known.flatten(1), out=space).view(-1, *known.shape[2:])

    def _corners(self, weight: Any) -> Sequence[Any]:
        """A weight at the start and along each way, along which one that does not move is nothing."""
        corners = self._folded.corners.get(id(weight))
        if corners is not None:
            return tuple(corners)
        still = None if weight is None else torch.zeros_like(weight)
        return (weight, *[still] * (self._along.shape[1] - 1))

    def _later(self, func: Any, given: Tensor, weight: Any, bias: Any, rest: Sequence[Any]) -> Tensor:
        """A layer whose input is already another one at every point."""
        points = self._along.shape[0]
        if given.shape[0] != points * self._rows:
            raise Unfoldable("a layer is given something else than the rows of the batch")
        parts = given.reshape(points, self._rows, *given.shape[1:])
        if func is F.linear:
            return self._products(parts, weight, bias)
        weights, biases = self._each(weight), [None] * points if bias is None else self._each(bias)
        return torch.cat([func(part, *own, *rest) for part, *own in zip(parts, weights, biases, strict=True)])

    def _each(self, weight: Tensor) -> Tensor:
        """A weight at every point; the same one where it does not move."""
        flat = self._folded.flat.get(id(weight))
        if flat is None:
            return weight.expand(self._along.shape[0], *weight.shape)
        return (self._along @ flat).view(-1, *weight.shape)

    def _products(self, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A linear layer at every point."""
        weights, rows = self._each(weight), given.flatten(1, -2)
        outputs = weight.shape[0]
        if outputs < NARROW:
            made = torch.bmm(weights, rows.mT).mT
        else:
            made = torch.bmm(rows, weights.mT, out=self._folded.space.take((*rows.shape[:2], outputs), given))
        if bias is not None:
            own = self._each(bias)[:, None] if id(bias) in self._folded.moving else bias
            made = made + own if torch.is_grad_enabled() else made.add_(own)
        return made.reshape(-1, *given.shape[2:-1], outputs)

    def _largest(
        self,
        given: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor | None:
        """The largest of each window by comparing shifted views, for small windows side by side."""
        height, width = size = _pair(kernel_size)
        beside = _pair(stride or size) == size and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
        if not beside or ceil_mode or return_indices or height * width > MOST_COMPARED:
            return None
        rows, columns = given.shape[-2] // height * height, given.shape[-1] // width * width
        largest, *others = (given[..., i:rows:height, j:columns:width] for i in range(height) for j in range(width))
        space = self._folded.space.take(largest.shape, given)
        for other in others:
            largest = torch.maximum(largest, other, out=space)
        return largest


def _pair(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value, value)


def _common_rows(inputs: Sequence[Any]) -> int:
    sizes = {len(value) for value in inputs if isinstance(value, Tensor) and value.dim()}
    if len(sizes) != 1:
        raise Unfoldable("the inputs have no common batch")
    return sizes.pop()


def _is_chain(model: nn.Module) -> bool:
    """Layers of torch's own one after the other, and nobody who looks at what goes between them."""
    if type(model) is not nn.Sequential:
        return False
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    return not hooked and all(
        type(part).__module__.startswith("torch.nn.") and not [*part.children()] for part in model
    )


def _is_plain_cross_entropy(loss_fn: Any, targets: Any) -> bool:
    """Cross-entropy with classes given by number, none of them ignored, and nothing special asked for."""
    asked = (getattr(loss_fn, name, None) for name in ("weight", "reduction", "label_smoothing"))
    plain = loss_fn is F.cross_entropy or (type(loss_fn) is nn.CrossEntropyLoss and (*asked,) == (None, "mean", 0.0))
    if not plain or not isinstance(targets, Tensor) or targets.dim() != 1 or targets.dtype != torch.int64:
        return False
    ignored = getattr(loss_fn, "ignore_index", -100)
    return bool(((targets >= 0) & (targets != ignored)).all())


def _relu(given: Tensor, space: Tensor | None) -> Tensor:
    return torch.clamp_min(given, 0, out=space)


def _in_space(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor | None], Tensor]:
    return lambda given, space: function(given, out=space)


_ACTIVATIONS: dict[Any, Callable[[Tensor, Tensor | None], Tensor]] = {
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), _relu),
    **dict.fromkeys((F.tanh, torch.tanh, Tensor.tanh), _in_space(torch.tanh)),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, Tensor.sigmoid), _in_space(torch.sigmoid)),
}
_LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d)
