"""What two versions of a program are compared by: short descriptions of the tensors that pass, in their order."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Kind(StrEnum):
    """What a tensor is to the training."""

    WEIGHT = "initial weight"
    INPUT = "input"
    OUTPUT = "output"
    TARGET = "target"
    LOSS = "loss"
    GRADIENT = "gradient"
    UPDATED = "weight after the step"


class Fingerprint(msgspec.Struct, frozen=True, array_like=True):
    """One tensor at one moment. Equal tensors have equal fingerprints, and different ones almost certainly do not."""

    step: int
    kind: Kind
    name: str
    """The module or parameter, with the class of its model, and which call of the step it was."""
    shape: tuple[int, ...]
    size: float | None
    """The root of the mean of its squares; None if that is not a finite number."""
    mark: float | None
    """The sum of its elements, each with a weight of its own."""
    path: str = ""
    line: int = 0
    """Where the user wrote the module that made it."""

    @property
    def key(self) -> tuple[Kind, str]:
        """What it is compared with: the same thing in the other version."""
        return self.kind, self.name

    def is_same(self, other: Fingerprint) -> bool:
        """To the last bit, as far as can be seen."""
        return (self.shape, self.size, self.mark) == (other.shape, other.size, other.mark)
