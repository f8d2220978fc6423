"""G17: weights initialised so large or so small that signals grow or fade with every layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from unstuck.events import LayersRan, ModelSeen, OptimizerStep, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics

rule = Rule(
    code="G17",
    name="bad-init-scale",
    title="weights initialised so large or small that signals grow or fade from layer to layer",
    severity=Severity.ERROR,
    explains=("G05", "G07", "G08", "G09", "G10", "G18", "M14", "O07", "O22", "O25", "O26", "R01", "R08"),
    needs=(OptimizerStep, LayersRan),
    needs_fresh_weights=True,
)

EXTREME = 1e3
"""Factor from the first layer to the last that is reported even if the run learns."""
NOTABLE = 30.0
"""Factor that is reported only if the loss diverges, spikes or stalls."""
FEWEST_LAYERS = 3
STRONG, WEAK = 4.0, 0.2
"""A layer that changes the size of its input by this factor contributes."""
SQUASHING = ("Tanh", "Sigmoid", "Softsign", "Hardtanh")
CAUSE = (
    "The factors of all layers multiply, forwards for the signal and backwards for the gradient: the first "
    "steps explode, saturate or learn nothing."
)
ZERO = "With weights of 0 no gradient reaches the layer before, and all units of a layer stay identical."


class Layer(NamedTuple):
    """A layer with weights, in the order of the forward pass."""

    name: str
    rms: float
    """Root mean square of its output."""
    gain: float
    """The same, as a multiple of its input."""
    scheme: str
    """`He` or `Xavier`, by what follows it."""
    wanted: float | None
    """The standard deviation that scheme gives its weights."""


class Start(NamedTuple):
    """A model at its first step."""

    layers: tuple[Layer, ...]
    place: Place | None

    @property
    def growth(self) -> float:
        """Factor of the signal from first to last layer. A small last layer is often deliberate and not counted."""
        first, last, inner = self.layers[0].rms, self.layers[-1].rms, self.layers[-2].rms
        return max(last, inner) / first if first > 0 else 0.0 if last == 0 else math.inf


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """Before training, only the extreme is reported."""
    for start in _starts(setup.layers, setup.models):
        if _is_off(start.growth, EXTREME):
            norms = setup.trial.gradient_norms if setup.trial else {}
            gradients = {name.removesuffix(".weight"): norm for name, norm in norms.items() if norm > 0}
            yield _finding(start, {}, gradients, "")


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Uses the outputs of the first forward pass; a smaller factor counts if the loss does not fall."""
    if record.continues:
        return
    first = {event.model: event for event in reversed(list(record.of(LayersRan))) if event.step == 0}
    problem = dynamics.problem(record)
    for start in _starts(list(first.values()), record.setup().models):
        if _is_off(start.growth, NOTABLE if problem else EXTREME):
            state = f", and the loss {problem}" if problem else ""
            yield _finding(start, _deviations(record), _gradients(record), state)


def _is_off(growth: float, limit: float) -> bool:
    return growth > limit or growth < 1 / limit


def _starts(events: Sequence[LayersRan], models: Sequence[ModelSeen]) -> Iterator[Start]:
    shapes = {fact.name: fact.shape for model in models for fact in model.parameters}
    places = {model.model: model.place for model in models}
    for event in events:
        layers = tuple(_layers(event, shapes))
        responsible = [layer for layer in layers if layer.gain > STRONG or layer.gain < WEAK]
        if len(layers) >= FEWEST_LAYERS and len(responsible) >= len(layers) // 2:
            yield Start(layers, places.get(event.model))


def _layers(event: LayersRan, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Layer]:
    """Each layer that owns a weight matrix or kernel, once."""
    seen: set[str] = set()
    previous: float | None = None
    for index, (name, rms) in enumerate(zip(event.names, event.rms, strict=True)):
        shape = shapes.get(f"{name}.weight", ())
        if rms is not None and len(shape) >= 2 and name not in seen and "Embedding" not in event.kinds[index]:
            seen.add(name)
            scheme = "Xavier" if _next_kind(event, index) in SQUASHING else "He"
            gain = rms / previous if previous else (0.0 if previous == 0 and rms == 0 else 1.0)
            yield Layer(name, rms, gain, scheme, _wanted(shape, scheme))
        previous = rms if rms is not None else previous


def _next_kind(event: LayersRan, index: int) -> str:
    return event.kinds[index + 1] if index + 1 < len(event.kinds) else ""


def _wanted(shape: Sequence[int], scheme: str) -> float | None:
    field = math.prod(shape[2:])
    fan_out, fan_in = shape[0] * field, shape[1] * field
    if not fan_in:
        return None
    return math.sqrt(2 / fan_in) if scheme == "He" else math.sqrt(2 / (fan_in + fan_out))


def _deviations(record: Record) -> dict[str, float]:
    """The standard deviation of each weight at its first measurement, by the name of its layer."""
    return {
        series.name.removesuffix(".weight"): norms[0] / math.sqrt(series.size)
        for series in dynamics.tensors(record)
        if series.dimension >= 2 and series.size and (norms := dynamics.known(series.weight_norm))
    }


def _gradients(record: Record) -> dict[str, float]:
    """The first gradient norm of each weight, by the name of its layer."""
    return {
        series.name.removesuffix(".weight"): norms[0]
        for series in dynamics.tensors(record)
        if series.dimension >= 2 and (norms := dynamics.known(series.grad_norm))
    }


def _finding(start: Start, deviations: Mapping[str, float], gradients: Mapping[str, float], state: str) -> Finding:
    layers = start.layers
    first, last = layers[0], max(layers[-2:], key=lambda layer: layer.rms)
    zero = last.rms == 0
    way = "grows" if start.growth > 1 else "shrinks"
    message = (
        f"Before the first update the signal {way} from {first.rms:.3g} after layer {first.name} to {last.rms:.3g} "
        f"after layer {last.name}{state}."
    )
    evidence = [Evidence("output size by layer (root mean square)", [f"{one.name} {one.rms:.3g}" for one in layers])]
    faded = [f"{layer.name} {gradients[layer.name]:.3g}" for layer in layers if layer.name in gradients]
    if faded:
        evidence.append(Evidence("first gradient norm by layer", faded))
    scales = [_scale(layer, deviations.get(layer.name)) for layer in layers if layer.wanted]
    return rule.finding(
        message,
        cause=ZERO if zero else CAUSE,
        fix=f"Initialise the weights for the activation that follows: {'; '.join(scales[:4])}.",
        subject=Subject("module", first.name),
        place=start.place,
        evidence=evidence,
        severity=Severity.ERROR if state and _is_off(start.growth, EXTREME) else Severity.WARNING,
        confidence=Confidence.CERTAIN if _is_off(start.growth, EXTREME) else Confidence.LIKELY,
    )


def _scale(layer: Layer, deviation: float | None) -> str:
    function = "kaiming_normal_" if layer.scheme == "He" else "xavier_normal_"
    now = f" instead of {deviation:.2g}" if deviation is not None else ""
    return f"layer {layer.name} with nn.init.{function} ({layer.scheme}, std {layer.wanted:.2g}{now})"
