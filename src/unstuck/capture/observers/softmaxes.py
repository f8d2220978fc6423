"""Watches for a softmax that is called without `dim`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unstuck.capture.watch import Watch
from unstuck.events import AxisGuessed, Place

NAMES = ("softmax", "log_softmax", "softmin")
_MOST_PLACES = 16


class Softmaxes:
    """Tells once per place which axis torch chose."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._told: set[Place | None] = set()

    def observer(self, name: str) -> tuple[Any, Any]:
        """The pair to put around one of the functions."""
        return (lambda args, kwargs: self._before(name, args, kwargs)), lambda *_: None

    def _before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (args[1] if len(args) > 1 else kwargs.get("dim")) is not None or not self._watch.clock.sampled:
            return
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or len(self._told) >= _MOST_PLACES or not self._watch.is_listening():
            return
        place = self._watch.places.here()
        if place not in self._told:
            self._told.add(place)
            axis = 0 if scores.dim() in (0, 1, 3) else 1
            shape = tuple(scores.shape)
            self._watch.tell(
                AxisGuessed(step=self._watch.clock.steps, place=place, function=name, shape=shape, axis=axis)
            )
