"""O25: ReLU units that output 0 for every input, or tanh and sigmoid layers that are saturated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unstuck.events import Activations, NonFinite, OptimizerStep
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics

rule = Rule(
    code="O25",
    name="dead-units",
    title="ReLU units that output 0 for every input, or a saturated tanh or sigmoid layer",
    severity=Severity.WARNING,
    explains=("G09", "G18", "O07", "O26", "R08"),
    needs=(OptimizerStep, Activations),
)

DEAD = 0.9
"""The share of a layer's units that must be off for every input."""
RISING_DEAD, RISEN = 0.5, 0.3
"""A smaller share is enough if it has risen by this much."""
SATURATED = 0.9
WINDOWS = 10
"""`dead` covers this many events."""
FEWEST_INPUTS = 50
"""A unit that was 0 for fewer inputs may still respond to the next."""
SQUASHING = ("tanh", "sigmoid")
WHY_DEAD = (
    "A ReLU that outputs 0 for every input passes no gradient, so the weights before it never change and it stays off. "
    "Too large an update or a strongly negative bias causes this."
)
WHY_SATURATED = "At the ends of its range a tanh or sigmoid is flat, so almost no gradient passes."
REVIVE = (
    "Lower the learning rate, the usual cause; or initialize with nn.init.kaiming_normal_ and biases of 0, add a "
    "LayerNorm or BatchNorm before it, or use LeakyReLU or GELU."
)
LOOSEN = (
    "Bring its input to a scale near 1: normalize the inputs, initialize with nn.init.xavier_normal_, or add a "
    "LayerNorm or BatchNorm before it."
)


class Layer(NamedTuple):
    """One activation over the run; a share is None where it was not measured."""

    name: str
    kind: str
    last: bool
    """It is the last activation of the model, so the loss may want its range."""
    dead: tuple[float, ...]
    saturated: tuple[float, ...]


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """One finding for dead layers and one for saturated ones, if the loss does not improve."""
    layers = _layers(record)
    if not dynamics.problem(record):
        layers = [layer for layer in layers if _lets_nothing_through(layer)]
    dead = [layer for layer in layers if _is_dead(layer)]
    if dead:
        yield _finding(record, dead, [layer.dead for layer in dead], "units that are 0 for every input")
    saturated = [layer for layer in layers if _is_saturated(layer)]
    if saturated:
        yield _finding(record, saturated, [layer.saturated for layer in saturated], "outputs at an end of the range")


def _layers(record: Record) -> list[Layer]:
    """The activations named by the last event, each with its history."""
    broken = next((event.step for event in record.of(NonFinite)), math.inf)  # NaN is not above 0, but not dead
    events = [event for event in record.of(Activations) if event.names and event.step < broken]
    alike = [event for event in events if event.names == events[-1].names]
    sure = alike[_unsure(alike) :]
    return [
        Layer(
            name,
            events[-1].kinds[column],
            column == len(events[-1].names) - 1,
            tuple(dynamics.known([_at(event.dead, column) for event in sure])),
            tuple(dynamics.known([_at(event.saturated, column) for event in alike])),
        )
        for column, name in enumerate(events[-1].names if events else ())
    ]


def _unsure(events: Sequence[Activations]) -> int:
    """How many events at the start cover too few inputs to call a unit dead."""
    return sum(_inputs(events, index + 1) < FEWEST_INPUTS for index in range(len(events)))


def _inputs(events: Sequence[Activations], count: int) -> int:
    """How many inputs the last of the first `count` events covers."""
    return sum(event.inputs for event in events[max(0, count - WINDOWS) : count])


def _at(values: Sequence[float | None], column: int) -> float | None:
    return values[column] if column < len(values) else None


def _is_dead(layer: Layer) -> bool:
    if not layer.dead or layer.kind in SQUASHING:
        return False
    return layer.dead[-1] >= DEAD or (layer.dead[-1] >= RISING_DEAD and layer.dead[-1] - layer.dead[0] >= RISEN)


def _lets_nothing_through(layer: Layer) -> bool:
    """Was every unit 0 for every input, all the time? Then nothing before it can have learned, even if a bias after it
    has lowered the loss."""
    return layer.kind not in SQUASHING and len(layer.dead) >= WINDOWS and min(layer.dead) >= 1.0


def _is_saturated(layer: Layer) -> bool:
    """Judged over the last events. The last activation of a model may saturate on purpose."""
    late = layer.saturated[-10:]
    return layer.kind in SQUASHING and not layer.last and (dynamics.median(late) or 0.0) >= SATURATED


def _finding(record: Record, layers: Sequence[Layer], shares: Sequence[Sequence[float]], what: str) -> Finding:
    squashing = layers[0].kind in SQUASHING
    measured = list(record.of(Activations))
    inputs = _inputs(measured, len(measured))
    share = shares[0][-1]
    whose = f"the outputs of {layers[0].name} are" if squashing else f"the units of {layers[0].name} were"
    where = "at an end of its range" if squashing else f"0 for each of {inputs:,} inputs"
    others = f" ({len(layers) - 1} more layers are similar)" if len(layers) > 1 else ""
    ailment = dynamics.problem(record)
    consequence = f"the loss {ailment}" if ailment else "nothing before them can have learned, although the loss falls"
    return rule.finding(
        f"{share:.0%} of {whose} {where}{others}, and {consequence}.",
        cause=WHY_SATURATED if squashing else WHY_DEAD,
        fix=LOOSEN if squashing else REVIVE,
        subject=Subject("module", layers[0].name),
        place=dynamics.model_place(record),
        evidence=[
            Evidence(f"{what} of {layer.name}", f"{each[0]:.0%} at the start, {each[-1]:.0%} at the end")
            for layer, each in zip(layers[:4], shares, strict=False)
        ],
        confidence=Confidence.LIKELY,  # they are certainly dead, but another finding may be the cause
    )
