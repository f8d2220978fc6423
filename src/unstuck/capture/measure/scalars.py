"""Numbers on their way from the device: at once on the CPU, elsewhere in one transfer, a step later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from unstuck.capture.measure.tensors import reading
from unstuck.events import Event

_MOST_WAITING = 16
"""Numbers of windows that are not recorded travel together, so many at a time."""


class Slot:
    """A number, or a row of numbers, that has not arrived yet."""

    __slots__ = ("arrived", "then", "value")

    def __init__(self, then: Callable[[Any], Any] | None = None) -> None:
        self.arrived = False
        self.value: Any = None
        self.then = then
        """What to make of it when it has arrived."""


class _Part(Slot):
    """One of several things that arrive together."""

    __slots__ = ("_place", "_whole")

    def __init__(self, whole: Slot, place: int) -> None:
        self._whole, self._place = whole, place

    @property
    def arrived(self) -> bool:  # type: ignore[override]
        return self._whole.arrived

    @property
    def value(self) -> Any:
        return self._whole.value[self._place]


class Scalars:
    """Collects numbers on the device during a window and fills their slots one window later."""

    immediate = ("cpu",)
    """Devices whose numbers can be read without waiting."""

    def __init__(self) -> None:
        self._collected: list[tuple[Slot, Tensor]] = []
        self._travelling: tuple[list[Slot], _Transfer] | None = None

    @property
    def expecting(self) -> bool:
        """Is any number still on its way?"""
        return bool(self._collected) or self._travelling is not None

    def is_immediate(self, tensor: Tensor) -> bool:
        """Can it be read without waiting?"""
        return tensor.is_cpu and "cpu" in self.immediate  # the name of its device takes four times as long

    def later(self, scalar: Tensor) -> Any:
        """The number itself, or a `Slot` for it."""
        if self.is_immediate(scalar):
            return float(scalar.item())
        return self._slot(scalar)

    def row_later(self, row: Tensor, then: Callable[[tuple[float, ...]], Any] = tuple) -> Any:
        """What `then` makes of the numbers of a 1-d tensor, or a `Slot` for it."""
        return then(tuple(row.tolist())) if self.is_immediate(row) else self._slot(row, then)

    def parts_later(self, row: Tensor, then: Callable[[tuple[float, ...]], Sequence[Any]], parts: int) -> list[Any]:
        """The things that `then` makes of the numbers of a 1-d tensor, or a `Slot` for each."""
        made = self.row_later(row, then)
        return [_Part(made, place) for place in range(parts)] if isinstance(made, Slot) else list(made)

    def turn(self, sampled: bool = True) -> None:
        """A window ended: what was sent at the last turn has arrived, send what was collected since."""
        self._receive()
        if self._collected and (sampled or len(self._collected) >= _MOST_WAITING):
            slots, tensors = zip(*self._collected, strict=True)
            self._travelling = (list(slots), _Transfer(list(tensors)))
            self._collected = []

    def finish(self) -> None:
        """Wait for everything."""
        self.turn()
        self._receive()

    def _slot(self, tensor: Tensor, then: Callable[[Any], Any] | None = None) -> Slot:
        slot = Slot(then)
        self._collected.append((slot, tensor.detach()))
        return slot

    def _receive(self) -> None:
        if self._travelling is None:
            return
        slots, transfer = self._travelling
        self._travelling = None
        for slot, value in zip(slots, transfer.values(), strict=True):
            slot.value, slot.arrived = slot.then(value) if slot.then else value, True


class _Transfer:
    def __init__(self, tensors: list[Tensor]) -> None:
        with reading():
            device = tensors[0].device
            self._shapes = [tensor.shape for tensor in tensors]
            joined = torch.cat([tensor.to(device, torch.float32).reshape(-1) for tensor in tensors])
            self._done: torch.cuda.Event | None = None
            if device.type != "cuda":
                self._host = joined
                return
            # Copying into pinned memory does not wait for the stream, and the event tells when it is through.
            self._host = torch.empty(joined.shape, dtype=joined.dtype, device="cpu", pin_memory=True)
            self._host.copy_(joined, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def values(self) -> list[float | tuple[float, ...]]:
        if self._done is not None:
            self._done.synchronize()
        numbers = iter(self._host.tolist())
        return [
            tuple(next(numbers) for _ in range(shape[0])) if shape else float(next(numbers)) for shape in self._shapes
        ]


def slots_of(event: Event) -> dict[str, Slot]:
    """The fields of an event whose number has not been put in yet."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {name: value for name, value in fields.items() if isinstance(value, Slot)}


def filled(event: Event) -> Event:
    """The event with the numbers that have arrived in place of their slots."""
    values: dict[str, Any] = {name: slot.value for name, slot in slots_of(event).items()}
    replace: Callable[..., Event] = msgspec.structs.replace
    return replace(event, **values)
