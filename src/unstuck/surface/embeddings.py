"""Contrastive losses as people write them, over two batches of embeddings: drawn over the similarity of the pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstuck.findings.surface import Axis, Comparison
from unstuck.surface.axes import two_inputs
from unstuck.surface.field import as_scalar, field_of, quiet
from unstuck.surface.loss import Loss, bind
from unstuck.surface.shape.checks import samples_for_method
from unstuck.surface.shape.comparison import comparison_of

SIMILARITY = "similarity"
PAIRS = 16
GOAL = {SIMILARITY: (0.5, 1.0)}
"""Where descent should end: pairs that belong together are to be alike."""
LONGER = 3.0
"""Embeddings this many times as long cost the same if the loss normalizes them."""


class Pairs:
    """A loss of two batches of embeddings, as a function of how similar the embeddings of each pair are."""

    def __init__(self, loss: Any, inputs: tuple[str, str], fixed: Mapping[str, Any], name: str) -> None:
        self._loss, self._inputs, self._fixed, self._name = loss, inputs, fixed, name

    def bound(self, dtype: torch.dtype, length: float = 1.0) -> Loss:
        """The loss over one axis: each pair has that similarity, and all other embeddings are at right angles."""
        inner = bind(self._loss, self._inputs, self._fixed, dtype, self._name)
        basis = torch.eye(2 * PAIRS, dtype=dtype) * length

        def evaluate(similarity: Tensor) -> Tensor:
            if similarity.numel() != 1:
                raise ValueError("one similarity at a time")
            own = similarity.reshape(())
            # A square root has no slope at 0, where embeddings are equal; a little more leaves the gradient as it is.
            left = 1 - own**2
            rest = (torch.where(left >= 0, left, -left) + 1e-10).sqrt()
            return as_scalar(inner(basis[:PAIRS], own * basis[:PAIRS] + rest * basis[PAIRS:])).reshape(similarity.shape)

        return Loss(inner.name, evaluate, inner.place, inner.fixed_elements + basis.numel())

    def returns_one_number(self, dtype: torch.dtype) -> bool:
        """A loss that gives a number for each element was not made for embeddings."""
        inner = bind(self._loss, self._inputs, self._fixed, dtype, self._name)
        basis = torch.eye(2 * PAIRS, dtype=dtype)
        found = inner(basis[:PAIRS], basis[PAIRS:])
        return found.numel() == 1 and bool(torch.isfinite(found).all())

    def note(self) -> str:
        """What it was given."""
        first, second = self._inputs
        return (
            f"{first} and {second} were {PAIRS} pairs of unit embeddings: each pair has the similarity shown, "
            "and all others have 0."
        )


def axis_of(points: int) -> Axis:
    """All similarities that there are."""
    return Axis(SIMILARITY, np.linspace(-1.0, 1.0, points))


def pairs_of(loss: Any, fixed: Mapping[str, Any], name: str) -> tuple[Pairs, Comparison] | None:
    """The loss over pairs of embeddings, if it compares each embedding with all of the other batch by a softmax.

    Anything else, such as a loss that compares number by number, is drawn over its inputs themselves.
    """
    inputs = two_inputs(loss, fixed)
    if inputs is None:
        return None
    pairs = Pairs(loss, inputs, fixed, name)
    try:
        with quiet():
            found = _compared(pairs)
    except Exception:  # a loss that was not made for this raises what it likes
        return None
    return (pairs, found) if found is not None else None


def _compared(pairs: Pairs) -> Comparison | None:
    number = torch.float64
    try:
        alone = pairs.returns_one_number(number)
    except Exception:
        number = torch.float32  # it may hold tensors of its own in single precision
        alone = pairs.returns_one_number(number)
    if not alone:
        return None
    axes = (axis_of(3),)
    sample = samples_for_method(axes)
    field, longer = (field_of(pairs.bound(number, length), sample, number) for length in (1.0, LONGER))
    bounded = bool(np.allclose(field(sample)[0], longer(sample)[0], rtol=1e-4, atol=1e-6))
    return comparison_of(field, axes, is_bounded=bounded)
