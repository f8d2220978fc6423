"""O25: units that are off for every input, or activations pinned to the ends of their range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unstuck.events import Activations, NonFinite, OptimizerStep
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.rules.shared import dynamics

if TYPE_CHECKING:
    from unstuck.record import Record

rule = Rule(
    code="O25",
    name="dead-units",
    title="units of a ReLU layer that are 0 for every input, or a tanh or sigmoid layer that is saturated",
    severity=Severity.WARNING,
    explains=("G09", "G18", "O07", "O26", "R08"),
    needs=(OptimizerStep, Activations),
)

DEAD = 0.9
"""The share of a layer's units that must be off for every input; or, if it keeps rising, the lower one."""
RISING_DEAD, RISEN = 0.5, 0.3
SATURATED = 0.9
WINDOWS = 10
"""`dead` looks back so many events."""
FEWEST_INPUTS = 50
"""A unit that was 0 for fewer inputs than this may answer to the next."""
SQUASHING = ("tanh", "sigmoid")
WHY_DEAD = (
    "A ReLU that is 0 for every input passes no gradient, so the weights in front of it never change again: the unit "
    "stays off. Too large an update, or a bias far below 0, does that."
)
WHY_SATURATED = (
    "At the ends of its range a tanh or sigmoid is flat: what goes in no longer changes what comes out, and almost no "
    "gradient passes."
)
REVIVE = (
    "Lower the learning rate, which is the usual reason; initialise with nn.init.kaiming_normal_ and biases of 0, put "
    "a LayerNorm or BatchNorm in front, or use LeakyReLU or GELU."
)
LOOSEN = (
    "Bring what goes into it to a scale near 1: normalise the inputs, initialise with nn.init.xavier_normal_, or put a "
    "LayerNorm or BatchNorm in front."
)


class Layer(NamedTuple):
    """One activation over the run; a share is None where it was not measured."""

    name: str
    kind: str
    last: bool
    """Nothing comes after it: its range may be what the loss wants."""
    dead: tuple[float, ...]
    saturated: tuple[float, ...]


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """One finding for the dead layers and one for the saturated ones, in a run that does not get on."""
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
    """The activations by the layout of the last event, each with its history."""
    broken = next((event.step for event in record.of(NonFinite)), math.inf)  # NaN is not above 0, but not dead
    events = [event for event in record.of(Activations) if event.names and event.step < broken]
    alike = [event for event in events if event.names == events[-1].names]
    return [
        Layer(
            name,
            events[-1].kinds[column],
            column == len(events[-1].names) - 1,
            tuple(dynamics.known([_at(event.dead, column) for event in alike[_unsure(alike) :]])),
            tuple(dynamics.known([_at(event.saturated, column) for event in alike])),
        )
        for column, name in enumerate(events[-1].names if events else ())
    ]


def _unsure(events: Sequence[Activations]) -> int:
    """How many events at the start rest on too few inputs to call a unit dead."""
    return sum(_inputs(events[: index + 1]) < FEWEST_INPUTS for index in range(len(events)))


def _inputs(events: Sequence[Activations]) -> int:
    """How many inputs of each unit the last of these events rests on."""
    return sum(event.inputs for event in events[-WINDOWS:])


def _at(values: Sequence[float | None], column: int) -> float | None:
    return values[column] if column < len(values) else None


def _is_dead(layer: Layer) -> bool:
    if not layer.dead or layer.kind in SQUASHING:
        return False
    return layer.dead[-1] >= DEAD or (layer.dead[-1] >= RISING_DEAD and layer.dead[-1] - layer.dead[0] >= RISEN)


def _lets_nothing_through(layer: Layer) -> bool:
    """Was every unit of it 0 for every input, all the time? Then nothing before it can have learned, though a bias
    behind it may have brought the loss down."""
    return layer.kind not in SQUASHING and len(layer.dead) >= WINDOWS and min(layer.dead) >= 1.0


def _is_saturated(layer: Layer) -> bool:
    """Typically over the last events; a squashed output at the end of the model may be what the loss wants."""
    late = layer.saturated[-10:]
    return layer.kind in SQUASHING and not layer.last and (dynamics.median(late) or 0.0) >= SATURATED


def _consequence(record: Record) -> str:
    ailment = dynamics.problem(record)
    return f"the loss {ailment}" if ailment else "nothing in front of them can have learned, though the loss falls"


def _finding(record: Record, layers: Sequence[Layer], shares: Sequence[Sequence[float]], what: str) -> Finding:
    squashing = layers[0].kind in SQUASHING
    inputs = _inputs(list(record.of(Activations)))
    share = shares[0][-1]
    whose = f"the outputs of {layers[0].name} lie" if squashing else f"the units of {layers[0].name} were"
    where = "at an end of its range" if squashing else f"0 for each of {inputs:,} inputs"
    others = f", in {len(layers) - 1} more layers it is alike" if len(layers) > 1 else ""
    return rule.finding(
        f"{share:.0%} of {whose} {where}{others}; and {_consequence(record)}.",
        cause=WHY_SATURATED if squashing else WHY_DEAD,
        fix=LOOSEN if squashing else REVIVE,
        subject=Subject("module", layers[0].name),
        place=dynamics.model_place(record),
        evidence=[
            Evidence(f"{what} of {layer.name}", f"{each[0]:.0%} at first, {each[-1]:.0%} in the end")
            for layer, each in zip(layers[:4], shares, strict=False)
        ],
        confidence=Confidence.LIKELY,  # that they are dead is certain; the cause may be another finding's
    )
