"""Records of runs made by hand, of any length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from unstuck.events import (
    Activations,
    Clip,
    Event,
    Gauges,
    Histograms,
    LossesBetween,
    RunEnded,
    RunStarted,
    ScalerUpdate,
    StepSkipped,
    TensorGauges,
    TensorsNamed,
)
from unstuck.record import Record
from unstuck.record.lines import encode


def events_of_a_run(
    steps: int, layers: int, *, every: int = 10, losses: Sequence[float] | None = None, optimizer: str = "Adam"
) -> Iterator[Event]:
    """A training of so many layers, a weight and a bias each, measured in every Nth step."""
    names = [name for layer in range(layers) for name in (f"blocks.{layer}.weight", f"blocks.{layer}.bias")]
    count = len(names)
    yield TensorsNamed(
        optimizer=optimizer,
        names=tuple(names),
        kinds=("Linear",) * count,
        sizes=(64, 8) * layers,
        dimensions=(2, 1) * layers,
        groups=(0,) * count,
        depths=tuple(range(count)),
    )
    between: list[tuple[int, float]] = []
    for step in range(steps):
        loss = losses[step] if losses is not None else 2.0 * math.exp(-3 * step / steps) + 0.1 * math.sin(step * 1.7)
        if step % every:
            between.append((step, loss))
            continue
        if between:
            places, values = zip(*between, strict=True)
            yield LossesBetween(optimizer=optimizer, steps=places, values=values, step=places[-1])
            between = []
        yield Gauges(
            optimizer=optimizer,
            step=step,
            loss=loss,
            grad_norm=1.0 + 0.1 * math.sin(step),
            rates=(1e-3 * (1 - step / steps),),
            seconds=0.02,
            data_seconds=0.001,
            forward_seconds=0.006,
            backward_seconds=0.008,
            step_seconds=0.002,
            memory=300 * 2**20,
        )
        yield TensorGauges(
            optimizer=optimizer,
            step=step,
            grad_norm=tuple(0.01 * (1 + row) for row in range(count)),
            weight_norm=(5.0,) * count,
            update_ratio=tuple(1e-3 * (1 + row / count) for row in range(count)),
        )
        yield Activations(
            step=step,
            names=tuple(f"relu after blocks.{layer}" for layer in range(layers)),
            kinds=("relu",) * layers,
            zero=(0.5,) * layers,
            dead=tuple(min(1.0, layer * step / (layers * steps)) for layer in range(layers)),
            saturated=(None,) * layers,
        )
        if step % (every * 10) == 0:
            bins = (1, *(0,) * 30, 4, 20, 40, 20, 4, *(0,) * 20)
            yield Histograms(of="weights", optimizer=optimizer, step=step, counts=(bins,) * count)
            yield Histograms(of="gradients", optimizer=optimizer, step=step, counts=(bins,) * count)
            yield Histograms(of="activations", step=step, counts=(bins,) * layers)
    if between:
        places, values = zip(*between, strict=True)
        yield LossesBetween(optimizer=optimizer, steps=places, values=values, step=places[-1])


def record_of(*events: Event, ended: bool = True) -> Record:
    """As it would be read."""
    closing = [RunEnded(steps=max((event.step for event in events), default=0) + 1)] if ended else []
    return Record(Path("events.jsonl"), (RunStarted(script="train.py"), *events, *closing), not ended)


def written(folder: Path, *events: Event, script: str = "train.py", ended: bool = True) -> Path:
    """The same as a file in a folder of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    closing = [RunEnded(steps=max((event.step for event in events), default=0) + 1)] if ended else []
    lines = [encode(event) for event in (RunStarted(script=script), *events, *closing)]
    (folder / "events.jsonl").write_bytes(b"".join(lines))
    return folder


def scaler(steps: int) -> Iterator[Event]:
    """A loss scale that is halved twice, and clipping in half of the steps."""
    for step in range(0, steps, 5):
        yield ScalerUpdate(step=step, scale=65536.0 if step < 10 else 16384.0)
        yield Clip(step=step, norm=2.0 if step % 2 else 0.5, limit=1.0)
    yield StepSkipped(step=10)
    yield StepSkipped(step=11)
