"""The numbers of a run as rows: which step, which gauge, of which layer, how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import (
    Activations,
    Event,
    Gauges,
    LayersRan,
    LossesBetween,
    OptimizerSeen,
    ScalerUpdate,
    TensorGauges,
    TensorsNamed,
)

if TYPE_CHECKING:
    from unstuck.record import Record

SECONDS = ("seconds", "data_seconds", "forward_seconds", "backward_seconds", "step_seconds")
OF_STEP = ("loss", "grad_norm", *SECONDS, "memory")
OF_TENSOR = ("grad_norm", "grad_max", "grad_zero", "grad_nonfinite", "weight_norm", "update_ratio", "unmoved")
OF_ACTIVATION = ("zero", "dead", "saturated")
RARE = "grad_nonfinite"
RATIO = "grad_weight_ratio"
NAMES = (*OF_STEP, "lr", "loss_scale", *OF_TENSOR[1:], RATIO, *OF_ACTIVATION, "rms")
"""Every gauge that `series` knows. `grad_norm` is measured both in all and by layer."""
WITHOUT_LAYERS = frozenset(OF_STEP) - frozenset(OF_TENSOR) | {"loss_scale"}
_SHOWN = 8


class Row(NamedTuple):
    """One number. `layer` is empty for what concerns the whole step."""

    step: int
    gauge: str
    layer: str
    value: float
    optimizer: str = ""


class Rows:
    """Turns the events of a record, one after the other, into rows."""

    def __init__(self) -> None:
        self._names: dict[str, TensorsNamed] = {}

    def of(self, event: Event) -> Iterator[Row]:
        """The numbers of the next event."""
        if isinstance(event, Gauges):
            yield from _of_step(event)
        elif isinstance(event, LossesBetween):
            yield from _losses(event)
        elif isinstance(event, TensorsNamed):
            self._names[event.optimizer] = event
        elif isinstance(event, TensorGauges) and event.optimizer in self._names:
            named = self._names[event.optimizer]
            yield from _columns(event, OF_TENSOR, named.names, event.optimizer)
            yield from _ratios(event, named.names)
            yield from _of_groups(event, named)
        elif isinstance(event, Activations):
            yield from _columns(event, OF_ACTIVATION, event.names)
        elif isinstance(event, LayersRan):
            yield from _columns(event, ("rms",), event.names)
        elif isinstance(event, ScalerUpdate) and event.scale is not None:
            yield Row(event.step, "loss_scale", "", event.scale)


def rows(record: Record, optimizers: frozenset[str] | None = None) -> Iterator[Row]:
    """Every number on record; only those of these optimizers, if they are named."""
    table = Rows()
    for event in record.events:
        label = getattr(event, "optimizer", "")
        if optimizers is None or not label or label in optimizers:
            yield from table.of(event)


def _of_step(event: Gauges) -> Iterator[Row]:
    for gauge in OF_STEP:
        value = getattr(event, gauge)
        if value is not None:
            yield Row(event.step, gauge, "", value, event.optimizer)
    for number, rate in enumerate(event.rates):
        layer = f"group {number}" if len(event.rates) > 1 else ""
        yield Row(event.step, "lr", layer, rate, event.optimizer)


def _losses(event: LossesBetween) -> Iterator[Row]:
    for step, value in zip(event.steps, event.values, strict=True):
        if value is not None:
            yield Row(step, "loss", "", value, event.optimizer)


def _columns(
    event: TensorGauges | Activations | LayersRan, gauges: Sequence[str], names: Sequence[str], optimizer: str = ""
) -> Iterator[Row]:
    for gauge in gauges:
        for layer, value in zip(names, getattr(event, gauge), strict=False):
            if value is not None and (value or gauge != RARE):
                yield Row(event.step, gauge, layer, value, optimizer)


def _ratios(event: TensorGauges, names: Sequence[str]) -> Iterator[Row]:
    for layer, gradient, weight in zip(names, event.grad_norm, event.weight_norm, strict=False):
        if gradient is not None and weight:
            yield Row(event.step, RATIO, layer, gradient / weight, event.optimizer)


def _of_groups(event: TensorGauges, named: TensorsNamed) -> Iterator[Row]:
    """Norms and ratios of each parameter group as a whole, where there are several."""
    groups = sorted(set(named.groups))
    for group in groups if len(groups) > 1 else ():
        columns = [place for place, own in enumerate(named.groups) if own == group]
        broken = any(event.grad_nonfinite[place] for place in columns if place < len(event.grad_nonfinite))
        gradient = None if broken else _length(event.grad_norm, columns)
        weight = _length(event.weight_norm, columns) if None not in event.weight_norm else None
        moved = _length([_product(event.update_ratio, event.weight_norm, place) for place in columns])
        found = {"grad_norm": gradient, "weight_norm": weight}
        if weight:
            found |= {"update_ratio": None if moved is None else moved / weight}
            found |= {RATIO: None if gradient is None else gradient / weight}
        for gauge, value in found.items():
            if value is not None:
                yield Row(event.step, gauge, f"group {group}", value, event.optimizer)


def _length(norms: Sequence[float | None], places: Sequence[int] | None = None) -> float | None:
    """The norm of tensors together, from that of each."""
    chosen = norms if places is None else [norms[place] for place in places if place < len(norms)]
    known = [norm for norm in chosen if norm is not None]
    return math.hypot(*known) if known else None


def _product(one: Sequence[float | None], other: Sequence[float | None], place: int) -> float | None:
    first, second = (column[place] if place < len(column) else None for column in (one, other))
    return None if first is None or second is None else first * second


def series(numbers: Iterable[Row], name: str, layer: str | None, optimizer: str | None) -> list[tuple[int, float]]:
    """One gauge over the steps. What cannot be answered is a ValueError of one sentence that names the choices."""
    if name not in NAMES:
        raise ValueError(f"there is no gauge {name!r}; the gauges are {', '.join(sorted(NAMES))}.")
    known = list(numbers)
    found = _of_layer([row for row in known if row.gauge == name], name, layer)
    if layer is not None and not found:
        _check_layer(known, name, layer)
    found = _of_optimizer(found, name, optimizer)
    return sorted(((row.step, row.value) for row in found), key=lambda pair: pair[0])


def _check_layer(known: Sequence[Row], name: str, layer: str) -> None:
    """Can the gauge be asked of this layer, measured or not? Before the first step nothing is known."""
    if name in WITHOUT_LAYERS:
        raise ValueError(f"{name} is measured for a step as a whole and has no layers; drop layer=.")
    layers = list(dict.fromkeys(row.layer for row in known if row.layer))
    if layers and not _fitting(layers, layer):
        raise ValueError(f"there is no layer {layer!r}; name one of {_listed(layers)}.")


def _fitting(layers: Sequence[str], layer: str) -> list[str]:
    """The layer of this name, or else those that contain the name as a part."""
    parts = [one for one in layers if one.endswith(f".{layer}") or one.startswith(f"{layer}.")]
    return [one for one in layers if one == layer] or parts


def _of_layer(found: list[Row], name: str, layer: str | None) -> list[Row]:
    layers = list(dict.fromkeys(row.layer for row in found))
    if layer is None:
        if not layers or "" in layers:
            return [row for row in found if not row.layer]
        if name == "lr":
            raise ValueError(f"there are several learning rates; say which with layer=: {_listed(layers)}.")
        raise ValueError(f"{name} is measured layer by layer; name one with layer=: {_listed(layers)}.")
    known = [one for one in layers if one]
    fitting = _fitting(known, layer)
    if not known:
        return []
    if len(fitting) != 1:
        trouble = f"{layer!r} is more than one layer" if fitting else f"{name} was not measured for any layer {layer!r}"
        raise ValueError(f"{trouble}; name one of {_listed(fitting or known)}.")
    return [row for row in found if row.layer == fitting[0]]


def _of_optimizer(found: list[Row], name: str, optimizer: str | None) -> list[Row]:
    labels = list(dict.fromkeys(row.optimizer for row in found if row.optimizer))
    if optimizer is None and len(labels) > 1:
        raise ValueError(f"{name} belongs to several optimizers; say which with optimizer=: {_listed(labels)}.")
    if optimizer is not None and labels and optimizer not in labels:
        raise ValueError(f"there is no {name} of an optimizer {optimizer!r}; name one of {_listed(labels)}.")
    return [row for row in found if optimizer is None or row.optimizer in ("", optimizer)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def optimizers_of(record: Record, parameters: frozenset[int]) -> frozenset[str]:
    """The labels of the optimizers that hold any of these parameters."""
    seen = record.of(OptimizerSeen)
    return frozenset(event.optimizer for event in seen if any(fact.key in parameters for fact in event.parameters))
