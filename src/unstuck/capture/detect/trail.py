"""What one window leaves behind for the search of the first NaN: no tensor and no module is kept alive by it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unstuck.capture.detect import graph
from unstuck.capture.measure.scalars import Slot
from unstuck.capture.measure.tensors import MOST_TENSORS, flaw, is_finite, norm, reading, tensors_in
from unstuck.events import Place

LONGEST = 4096


class _Passed(NamedTuple):
    """A tensor as it was at one moment; `norm` if it was measured then."""

    tensor: weakref.ref[Tensor]
    version: int
    norm: Tensor | None = None

    def is_finite(self) -> bool | None:
        """None if it is gone, was changed since, or is infinite as a mask is on purpose."""
        tensor = self.tensor()
        if tensor is not None and _version(tensor) == self.version:
            with reading():
                if is_finite(tensor):
                    return True
                return False if bool((torch.isnan(tensor) | torch.isposinf(tensor)).any()) else None
        return True if self.norm is not None and math.isfinite(float(self.norm)) else None


class Output(NamedTuple):
    """What a module returned: a measured norm, or a weak reference where measuring was not worth its time."""

    module: weakref.ref[nn.Module]
    place: Place | None
    norm: Tensor | None
    tensor: weakref.ref[Tensor]
    version: int = -1
    size: int = 0
    inputs: tuple[_Passed, ...] | None = None
    """What went into the module; None if that is not known."""

    def state(self) -> str:
        """`finite`, `nan`, `inf`, or empty if the tensor is gone."""
        if self.norm is not None:
            value = float(self.norm)
            return "finite" if math.isfinite(value) else "nan" if math.isnan(value) else "inf"
        tensor = self.tensor()
        if tensor is None:
            return ""
        return "finite" if is_finite(tensor) else flaw(tensor)

    def inputs_finite(self) -> bool | None:
        """Was what went into the module finite? None if that cannot be told."""
        found = [passed.is_finite() for passed in self.inputs or ()]
        if False in found:
            return False
        return True if found and None not in found else None


class Trail:
    """What one window left behind."""

    def __init__(self) -> None:
        self.inputs: list[tuple[weakref.ref[nn.Module], Place | None, weakref.ref[Tensor]]] = []
        self.outputs: list[Output] = []
        self.complete = True
        """Was every output of every module measured?"""
        self.loss: float | Slot | None = None
        self.loss_place: Place | None = None
        self.root: graph.Node = None
        self.gradients: tuple[list[Tensor], Tensor] | None = None
        self.gradient_norm: float | Slot | None = None
        self.step_place: Place | None = None
        self.step = 0
        self._by_tensor: dict[int, Output] = {}

    def add(self, module: nn.Module, place: Place | None, arguments: Any, output: Any) -> None:
        """Measure what a module returned, and note what it was given."""
        outputs = tensors_in(output)
        self.complete = self.complete and 0 < len(outputs) < MOST_TENSORS
        reference = weakref.ref(module)
        inputs = self._passed(tensors_in(arguments, depth=3))
        for tensor in outputs:
            # No weak reference may stay on a parameter: torch refuses to swap such tensors.
            if not isinstance(tensor, nn.Parameter):
                known = self._known(tensor)
                size = known.norm if known is not None else norm(tensor)
                found = Output(reference, place, size, weakref.ref(tensor), _version(tensor), tensor.numel(), inputs)
                self.outputs.append(found)
                self._by_tensor[id(tensor)] = found

    def _known(self, tensor: Tensor) -> Output | None:
        """The same tensor as a module inside returned it, not measured again."""
        known = self._by_tensor.get(id(tensor))
        same = known is not None and known.tensor() is tensor and known.version == _version(tensor)
        return known if same else None

    def all_finite(self) -> bool:
        """Were the outputs of all modules measured, and finite?"""
        return self.complete and bool(self.outputs) and all(output.state() == "finite" for output in self.outputs)

    def first_broken(self) -> tuple[Output, str] | None:
        """The first module whose output is broken. Infinity that finite outputs follow was meant to be there."""
        infinite: tuple[Output, str] | None = None
        for output in self.outputs:
            state = output.state()
            if state == "nan":
                return infinite or (output, state)
            if state == "inf":
                infinite = infinite or (output, state)
            elif state == "finite":
                infinite = None
        return infinite

    def _passed(self, tensors: Sequence[Tensor]) -> tuple[_Passed, ...] | None:
        if len(tensors) >= MOST_TENSORS or any(isinstance(tensor, nn.Parameter) for tensor in tensors):
            return None
        found = []
        for tensor in tensors:
            known = self._known(tensor)
            found.append(_Passed(weakref.ref(tensor), _version(tensor), known.norm if known is not None else None))
        return tuple(found)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
