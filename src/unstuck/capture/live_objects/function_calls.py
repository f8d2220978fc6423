"""Observes the functions of torch that a pass calls: losses, and calls that drop values at random."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.hooks import FunctionCalls
from unstuck.events import DropoutFact, Place
from unstuck.events.losses import CLASS_LOSSES, VALUE_LOSSES

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ATTENTION = "scaled_dot_product_attention"
BATCH_NORM = "batch_norm"
IGNORED = -100
ON_PURPOSE = "training=True"


class Compared(NamedTuple):
    """What a loss was given."""

    of_classes: bool
    prediction: Tensor
    target: Tensor
    ignored: int


class ObservedCalls(FunctionCalls):
    """While it is active, keeps what is of interest and lets every call through."""

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self.compared: list[Compared] = []
        self.dropping: list[DropoutFact] = []
        self.batch_statistics = False
        """A normalisation over the batch took its statistics from the batch itself."""

    def called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called for every function of torch."""
        named, name = kwargs, getattr(function, "__name__", "")
        if name in CLASS_LOSSES or name in VALUE_LOSSES:
            self._compare(name, args, named)
        elif name in DROPOUTS and _argument(args, named, 2, "training", "alpha" not in name):
            self._drop(name, _argument(args, named, 1, "p", 0.5))
        elif name == ATTENTION:
            self._drop(name, _argument(args, named, 4, "dropout_p", 0.0))
        elif name == BATCH_NORM and _argument(args, named, 5, "training", False):
            self.batch_statistics = True
        return function(*args, **named)

    def _compare(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        prediction, target = _argument(args, named, 0, "input", None), _argument(args, named, 1, "target", None)
        if isinstance(prediction, Tensor) and isinstance(target, Tensor):
            ignored = named.get("ignore_index", IGNORED)
            self.compared.append(Compared(name in CLASS_LOSSES, prediction.detach(), target.detach(), ignored))

    def _drop(self, name: str, share: Any) -> None:
        place = self._places.here()
        if isinstance(share, int | float) and share > 0 and not _says_so(place):
            self.dropping.append(DropoutFact(name, float(share), place))


def _says_so(place: Place | None) -> bool:
    """Does the call say `training=True`, as Monte Carlo dropout does?"""
    if place is None:
        return False
    lines = (linecache.getline(place.path, line) for line in range(place.line, max(place.line, place.end_line) + 1))
    return ON_PURPOSE in "".join(lines).replace(" ", "")


def _argument(args: Sequence[Any], named: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return named[name] if name in named else args[position] if len(args) > position else default
