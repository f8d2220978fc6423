"""Several managers in one program, as for a GAN: none touches what belongs to another."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from unstuck.gradients.manager import GradientManager

_live: weakref.WeakSet[GradientManager] = weakref.WeakSet()
SHARED_SCALER = "Two managers share a GradScaler, and one would rescale in the other's window: give each its own."
TAKEN_OVER = "A newer GradientManager has taken over parameters of this one: use that one."


def enter(manager: GradientManager) -> None:
    """A parameter and a scaler belong to one manager, the newest: an older one refuses from now on."""
    own = set(manager.parameters)
    for other in [*_live]:
        if other.scaler is not None and other.scaler is manager.scaler:
            other.replaced = SHARED_SCALER
        elif not own.isdisjoint(other.parameters):
            other.replaced = TAKEN_OVER
        else:
            continue
        _live.discard(other)
    _live.add(manager)


def present() -> bool:
    """Whether there is more than one manager."""
    return len(_live) > 1


def parameters_of_others(manager: GradientManager) -> list[Tensor]:
    """What all managers but this one hold."""
    return [parameter for other in [*_live] if other is not manager for parameter in other.parameters]


def managers() -> list[GradientManager]:
    """All that are in use."""
    return [*_live]
