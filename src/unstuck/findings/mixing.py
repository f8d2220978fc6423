"""Where the numbers of different examples of a batch meet though they must not, by operation: plain data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.events import Place


class Mix(StrEnum):
    """How an operation brings examples together."""

    COLUMN = "column"
    """One number for each example as (N, 1) meets one for each as (N,)."""
    COEFFICIENT = "coefficient"
    """Numbers of each example are broadcast along another axis than that of the examples."""
    PICK = "pick"
    """`scores[:, y]`: from every example, the entries of all examples are picked."""
    SOFTMAX = "softmax"
    """A softmax along the axis of the examples."""
    SEQUENCE = "sequence"
    """A recurrent layer or an attention takes the examples for the positions of a sequence."""
    ROWS = "rows"
    """A reshape puts numbers of several examples into one row."""
    CODES = "codes"
    """A table of positions is read along the axis of the examples."""
    OTHER = "other"
    """Such as all pairs of examples, which may be meant."""


class Mixing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation after which numbers of one example depend on others, or on its place in the batch."""

    mix: Mix
    operation: str
    """As torch calls it: `sub`, `softmax`, `view`."""
    examples: int
    shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors that it was given."""
    result: tuple[int, ...] = ()
    axis: int = 0
    """On which the examples lie in the first of them."""
    module: str = ""
    """The layer that it happens in, by its name in the model, where that is one of torch's."""
    kind: str = ""
    """The class of that layer."""
    inside: bool = False
    """Was a model being called?"""
    place: Place | None = None


__all__ = ["Mix", "Mixing"]
