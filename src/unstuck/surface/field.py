"""The value and gradient of a loss at many points: in one call where the loss allows it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unstuck.findings.landmarks import Method
from unstuck.findings.surface import Array
from unstuck.surface.loss import Loss, SurfaceError

LARGEST_CHUNK = 65_536
ELEMENTS_AT_ONCE = 2**24
"""Points times fixed elements that one call may hold: what bounds the memory."""

Coordinates = tuple[Tensor, ...]
Evaluate = Callable[[Coordinates], tuple[Tensor, Tensor]]
"""From one tensor of n coordinates per axis to n values and (d, n) gradients."""


@dataclass
class Field:
    """A loss to evaluate at points given as an (n, d) array, and what was learnt about it while doing so."""

    loss: Loss
    dtype: torch.dtype
    method: Method
    evaluate: Evaluate
    shape: tuple[int, ...] = ()
    """The shape of input the loss accepts for one point: (), (1,) or (1, 1)."""
    differentiable: bool = True
    remarks: tuple[str, ...] = ()
    """What is odd about what the loss returns."""
    errors: dict[str, int] = field(default_factory=dict)
    """What the loss raised, and at how many points."""

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Values (n,) and gradients (d, n). NaN where the loss raises."""
        value = np.full(len(points), np.nan)
        gradient = np.full((points.shape[1], len(points)), np.nan)
        size = chunk_size(self.loss)
        with quiet():
            for start in range(0, len(points), size):
                self._fill(points, slice(start, start + size), value, gradient)
        return value, gradient

    def _fill(self, points: Array, part: slice, value: Array, gradient: Array) -> None:
        """Evaluate a part; one that raises is halved until the guilty points are alone."""
        coordinates = _tensors(points[part], self.dtype)
        try:
            values, gradients = self.evaluate(coordinates)
        except SurfaceError:
            raise
        except Exception as error:
            start, stop, _ = part.indices(len(points))
            if stop - start == 1:
                sentence = one_line(error)
                self.errors[sentence] = self.errors.get(sentence, 0) + 1
                return
            middle = (start + stop) // 2
            self._fill(points, slice(start, middle), value, gradient)
            self._fill(points, slice(middle, stop), value, gradient)
            return
        value[part] = values.detach().numpy()
        gradient[:, part] = gradients.detach().numpy()


def field_of(loss: Loss, samples: Array, dtype: torch.dtype, batched: Callable[..., Tensor] | None = None) -> Field:
    """The quickest way to evaluate this loss that gives the same as one point at a time.

    `batched` gives the loss at many points, if the loss itself is not made for more than one.
    """
    with quiet():
        known = _alone(loss, samples, dtype)
        for method, evaluate in (
            (Method.VECTORISED, _all_at_once(batched or loss)),
            (Method.VMAP, _mapped(loss, known.shape)),
        ):
            if _agrees(evaluate, known, dtype):
                return Field(loss, dtype, method, evaluate, known.shape, known.differentiable, known.remarks)
    slow = _one_by_one(loss, known.shape)
    return Field(loss, dtype, Method.POINT_BY_POINT, slow, known.shape, known.differentiable, known.remarks)


@dataclass(frozen=True)
class _Alone:
    """What the loss gives at single points."""

    points: Array
    value: Array
    gradient: Array
    shape: tuple[int, ...]
    """The shape of input it accepts for one point: (), (1,) or (1, 1)."""
    differentiable: bool
    remarks: tuple[str, ...]


def _alone(loss: Loss, samples: Array, dtype: torch.dtype) -> _Alone:
    """Evaluate the loss at single points, as scalars or, if it wants a batch, as batches of one."""
    failure: Exception | None = None
    for shape in ((), (1,), (1, 1)):
        evaluate = _one_by_one(loss, shape)
        points, values, gradients, differentiable = [], [], [], False
        remarks: dict[str, None] = {}
        for point in samples:
            try:
                coordinates = _tensors(point[None], dtype)
                value, gradient = evaluate(coordinates)
                again = loss(*(coordinate.reshape(shape).requires_grad_() for coordinate in coordinates))
            except SurfaceError:
                raise
            except Exception as error:
                failure = failure or error
                continue
            differentiable |= again.requires_grad
            remarks |= dict.fromkeys(_remarks(loss.name, value, again))
            points.append(point)
            values.append(float(value))
            gradients.append(gradient[:, 0].numpy())
        if points:
            known = np.array(points), np.array(values), np.array(gradients).T
            return _Alone(*known, shape, differentiable, tuple(remarks))
    at = ", ".join(f"{coordinate:.4g}" for coordinate in samples[0])
    raise SurfaceError(f"{loss.name} cannot be evaluated, not at ({at}) nor elsewhere: {one_line(failure)}") from None


def _remarks(name: str, value: Tensor, again: Tensor) -> Iterator[str]:
    if again.numel() > 1:
        yield f"{name} returns {again.numel()} numbers for one point; their mean is shown."
    if not np.allclose(float(value), float(as_scalar(again)), rtol=1e-4, equal_nan=True):
        yield f"{name} gives different values for the same input; one draw of its random numbers is shown."


def _agrees(evaluate: Evaluate, known: _Alone, dtype: torch.dtype) -> bool:
    """Does it give, for all points at once, what the loss gives for each alone?"""
    try:
        value, gradient = evaluate(_tensors(known.points, dtype))
    except SurfaceError:
        raise
    except Exception:
        return False
    return _same(value.numpy(), known.value) and _same(gradient.numpy(), known.gradient)


def _same(one: Array, other: Array) -> bool:
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))


def _mapped(loss: Loss, shape: tuple[int, ...]) -> Evaluate:
    """Map a loss that reduces over the points."""

    def alone(*coordinates: Tensor) -> Tensor:
        return as_scalar(loss(*(coordinate.reshape(shape) for coordinate in coordinates)))

    return _all_at_once(torch.func.vmap(alone, randomness="same"))


def _all_at_once(batched: Callable[..., Tensor]) -> Evaluate:
    """Call the loss once with all points, if it works element by element."""

    def evaluate(coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        leaves = [coordinate.detach().requires_grad_() for coordinate in coordinates]
        value = batched(*leaves)
        if value.shape != leaves[0].shape:
            raise ValueError("the loss reduces")
        return value.detach(), _gradients(value, leaves)

    return evaluate


def _one_by_one(loss: Loss, shape: tuple[int, ...]) -> Evaluate:
    """Where nothing else works: one call for every point."""

    def evaluate(coordinates: Coordinates) -> tuple[Tensor, Tensor]:
        values, gradients = [], []
        state = torch.get_rng_state()
        for point in zip(*coordinates, strict=True):
            torch.set_rng_state(state)
            leaves = [coordinate.detach().reshape(shape).requires_grad_() for coordinate in point]
            value = as_scalar(loss(*leaves))
            values.append(value.detach().reshape(()))
            gradients.append(_gradients(value, leaves).reshape(len(leaves)))
        return torch.stack(values), torch.stack(gradients, dim=1)

    return evaluate


def as_scalar(value: Tensor) -> Tensor:
    """A loss that returns several numbers for one point is shown as their mean."""
    return value.reshape(()) if value.numel() == 1 else value.mean()


def _gradients(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """(d, ...) gradients of the sum; zero for an axis the loss does not use."""
    if not value.requires_grad:
        return torch.stack([torch.zeros_like(leaf) for leaf in leaves]).detach()
    found = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    zero = torch.zeros_like(leaves[0]).detach()
    return torch.stack([zero if gradient is None else gradient for gradient in found]).detach()


def _tensors(points: Array, dtype: torch.dtype) -> Coordinates:
    return tuple(torch.from_numpy(np.ascontiguousarray(column)).to(dtype) for column in points.T)


def chunk_size(loss: Loss) -> int:
    """How many points go in one call."""
    return int(min(LARGEST_CHUNK, max(64, ELEMENTS_AT_ONCE // max(1, loss.fixed_elements))))


def one_line(error: BaseException | None) -> str:
    """The error as a user knows it, on one line."""
    if error is None:
        return "it gave no value"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of broadcasting and mapping, and the same random numbers as before and for all."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.enable_grad():
        warnings.simplefilter("ignore")
        yield
