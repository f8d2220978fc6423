"""Numbers on their way from the device: at once on the CPU, elsewhere in one transfer, a step later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from unstuck.capture.tensors import reading
from unstuck.events import Event


class Slot:
    """A number that has not arrived yet."""

    __slots__ = ("arrived", "value")

    def __init__(self) -> None:
        self.arrived = False
        self.value: float | None = None


class Scalars:
    """Collects device scalars during a window and fills their slots one window later."""

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
        return tensor.device.type in self.immediate

    def later(self, scalar: Tensor) -> Any:
        """The number itself, or a `Slot` for it."""
        if self.is_immediate(scalar):
            return scalar.item()
        slot = Slot()
        self._collected.append((slot, scalar.detach()))
        return slot

    def turn(self) -> None:
        """A window ended: what was sent at the last turn has arrived, send what was collected since."""
        self._receive()
        if self._collected:
            slots, tensors = zip(*self._collected, strict=True)
            self._travelling = (list(slots), _Transfer(list(tensors)))
            self._collected = []

    def finish(self) -> None:
        """Wait for everything."""
        self.turn()
        self._receive()

    def _receive(self) -> None:
        if self._travelling is None:
            return
        slots, transfer = self._travelling
        self._travelling = None
        for slot, value in zip(slots, transfer.values(), strict=True):
            slot.value, slot.arrived = value, True


class _Transfer:
    def __init__(self, scalars: list[Tensor]) -> None:
        with reading():
            device = scalars[0].device
            stacked = torch.stack([scalar.to(device, torch.float32) for scalar in scalars])
            self._done: torch.cuda.Event | None = None
            if device.type != "cuda":
                self._host = stacked
                return
            # Copying into pinned memory does not wait for the stream, and the event tells when it is through.
            self._host = torch.empty(stacked.shape, dtype=stacked.dtype, device="cpu", pin_memory=True)
            self._host.copy_(stacked, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def values(self) -> list[float]:
        if self._done is not None:
            self._done.synchronize()
        return [float(value) for value in self._host.tolist()]


def slots_of(event: Event) -> dict[str, Slot]:
    """The fields of an event whose number has not been put in yet."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {name: value for name, value in fields.items() if isinstance(value, Slot)}


def filled(event: Event) -> Event:
    """The event with the numbers that have arrived in place of their slots."""
    values: dict[str, Any] = {name: slot.value for name, slot in slots_of(event).items()}
    replace: Callable[..., Event] = msgspec.structs.replace
    return replace(event, **values)
