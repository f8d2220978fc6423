"""A run along its steps: loss, rates, gradients, clipping, loss scale, time and memory, each with what is healthy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from unstuck.events import (
    Clip,
    EpisodesEnded,
    Evaluated,
    Gauges,
    NonFinite,
    OptimizerSeen,
    ScalerUpdate,
    Scored,
    StepSkipped,
)
from unstuck.findings.curve import curves_of
from unstuck.findings.verdict import Verdict
from unstuck.record import Record
from unstuck.view.thin import Number, median, short, thinned, trend

MOST_POINTS = 3000
"""Of the loss, which has a value for each step."""
MOST_SAMPLES = 900
"""Of everything that is measured in sampled steps only."""
MOST_MARKS = 200
MOST_LINES = 8


class Style(StrEnum):
    """How a line is drawn."""

    LINE = "line"
    FAINT = "faint"
    """What the noise of a trend is made of."""
    TREND = "trend"
    POINTS = "points"
    STEPS = "steps"
    """It keeps its value until the next one."""
    LIMIT = "limit"
    AREA = "area"
    """On top of the areas before it."""


class ChartLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a chart."""

    label: str
    steps: list[int]
    values: list[Number]
    style: Style = Style.LINE


class Band(msgspec.Struct, frozen=True, omit_defaults=True):
    """The heights between which a chart looks healthy; None is the end of the axis."""

    low: float | None = None
    high: float | None = None
    label: str = "healthy"


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at a step."""

    step: int
    label: str


class Chart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One chart over the steps of the run."""

    name: str
    title: str
    lines: list[ChartLine]
    healthy: str
    """What a healthy run looks like, in one line."""
    band: Band | None = None
    unit: str = ""
    log: bool = False
    from_zero: bool = False
    most: float | None = None
    """Where the axis ends though some values go on."""
    marks: list[Mark] = []


def timeline(record: Record, verdict: Verdict) -> list[Chart]:
    """Every chart that this record has numbers for; the loss comes first."""
    built = (chart(record, verdict) for chart in CHARTS)
    return [chart for chart in built if chart is not None and any(line.steps for line in chart.lines)]


def _line(label: str, points: Iterable[tuple[int, Number]], style: Style = Style.LINE, most: int = 0) -> ChartLine:
    pairs = list(points)
    steps, values = thinned([step for step, _ in pairs], [value for _, value in pairs], most or MOST_SAMPLES)
    return ChartLine(label, steps, values, style)


def _constant(label: str, value: float, lines: Sequence[ChartLine]) -> ChartLine:
    first = min((line.steps[0] for line in lines if line.steps), default=0)
    last = max((line.steps[-1] for line in lines if line.steps), default=0)
    return ChartLine(label, [first, last], [short(value)] * 2, Style.LIMIT)


def _loss(record: Record, verdict: Verdict) -> Chart | None:
    lines: list[ChartLine] = []
    curves = [(name, curve) for name, curve in curves_of(record).items() if curve.losses]
    for name, curve in curves[:MOST_LINES]:
        places, medians = trend(curve.steps, curve.losses)
        style = Style.FAINT if places else Style.LINE
        lines.append(_line(name, zip(curve.steps, curve.losses, strict=True), style, MOST_POINTS // len(curves[:4])))
        lines += [ChartLine(f"{name}, trend", places, medians, Style.TREND)] if places else []
    evaluated = [(event.step, event.value) for event in record.of(Evaluated) if event.value is not None]
    lines += [_line("in evaluation", evaluated, Style.POINTS)] if evaluated else []
    guesses = [outcome.guess for outcome in verdict.outcomes if outcome.guess is not None]
    guess = guesses[0] if len(guesses) == 1 else None
    healthy = "It falls steeply at first, then ever more slowly; its noise gets no wider, and it does not jump."
    if guess is not None:
        lines.append(_constant("a guess", guess, lines))
        healthy = f"It falls below {guess:.3g}, what the best constant answer costs, in the first part of the run."
    ends = [value for line in lines if line.style in (Style.LINE, Style.FAINT) for value in line.values if value]
    wide = len(ends) > 1 and min(ends) > 0 and max(ends) > 30 * min(ends)
    broken = [
        Mark(event.step, f"first {event.value} in {event.what} {event.name}".rstrip()) for event in _broken(record)
    ]
    band = Band(None, short(guess), "better than a guess") if guess is not None else None
    return Chart(name="loss", title="Loss", lines=lines, healthy=healthy, band=band, log=wide, marks=broken)


def _broken(record: Record) -> Iterator[NonFinite]:
    yield from itertools.islice(record.of(NonFinite), 1)


def _right(record: Record, verdict: Verdict) -> Chart | None:
    scored = [event for event in record.of(Scored) if event.right is not None]
    known = [(event.step, event.right) for event in scored]
    lines = [_line("of the training batch", known, Style.FAINT)] if known else []
    places, medians = trend([step for step, _ in known], [share for _, share in known], 80)
    lines += [ChartLine("of the training batch, trend", places, medians, Style.TREND)] if places else []
    evaluated = [(event.step, event.accuracy) for event in record.of(Evaluated) if event.accuracy is not None]
    lines += [_line("in evaluation", evaluated, Style.POINTS)] if evaluated else []
    guesses = [event.guess_right for event in scored if event.guess_right is not None]
    if not lines:
        return None
    healthy = "Both rise above what always answering the same class gets right, and stay close to each other."
    band = None
    if guesses:
        lines.append(_constant("a guess", guesses[-1], lines))
        band = Band(short(guesses[-1]), 1.0, "better than a guess")
    return Chart(name="right", title="Right answers", lines=lines, healthy=healthy, band=band, unit="%", from_zero=True)


def _returns(record: Record, verdict: Verdict) -> Chart | None:
    found: dict[str, list[tuple[int, Number]]] = defaultdict(list)
    for event in record.of(EpisodesEnded):
        found[event.environment] += zip(event.steps, event.returns, strict=True)
    lines = []
    for name, points in found.items():
        places, medians = trend([step for step, _ in points], [value for _, value in points], 80)
        lines.append(_line(f"{name}", points, Style.FAINT if places else Style.LINE))
        lines += [ChartLine(f"{name}, trend", places, medians, Style.TREND)] if places else []
    healthy = "It rises, with plateaus; single episodes differ widely. The loss of an agent need not fall."
    return Chart(name="returns", title="Return per episode", lines=lines, healthy=healthy) if lines else None


def _rates(record: Record, verdict: Verdict) -> Chart | None:
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    optimizers = {event.optimizer for event in record.of(OptimizerSeen)}
    for event in record.of(Gauges):
        several = len(set(event.rates)) > 1
        for group, rate in enumerate(event.rates):
            label = event.optimizer if len(optimizers) > 1 or not several else ""
            found[f"{label} group {group}".strip() if several else label].append((event.step, rate))
    merged = _alike(found)
    lines = [_line(name or "all groups", points) for name, points in merged[:MOST_LINES]]
    rates = [rate for _, points in merged for _, rate in points if rate > 0]
    wide = bool(rates) and max(rates) > 30 * min(rates)
    healthy = "The schedule you meant: warm-up, plateau, decay. A level line under a scheduler means it never steps."
    most = max(rates, default=0.0)
    band = Band(0.0, short(most), "up to the highest rate used") if rates and not wide else None
    return Chart(
        name="rates",
        title="Learning rate in use",
        lines=lines,
        healthy=healthy,
        band=band,
        log=wide,
        from_zero=not wide,
    )


def _alike(found: dict[str, list[tuple[int, float]]]) -> list[tuple[str, list[tuple[int, float]]]]:
    """Groups whose rates are the same all along have one line."""
    merged: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name, points in found.items():
        merged.setdefault(tuple(points), []).append(name)
    return [
        (names[0] if len(names) == 1 else f"{names[0]} to {names[-1].rpartition(' ')[2]}", list(points))
        for points, names in merged.items()
    ]


def _gradients(record: Record, verdict: Verdict) -> Chart | None:
    found: dict[str, list[tuple[int, Number]]] = defaultdict(list)
    for event in record.of(Gauges):
        if event.grad_norm is not None:
            found[event.optimizer].append((event.step, event.grad_norm))
    lines = [_line(name if len(found) > 1 else "used by the step", points) for name, points in found.items()]
    healthy = "Level or slowly falling, mostly 0.1 to 10; no slide towards 0 and no jump above 100."
    band = Band(0.1, 10.0, "usual, 0.1 to 10")
    return Chart(
        name="gradients", title="Gradient norm", lines=lines[:MOST_LINES], healthy=healthy, band=band, log=True
    )


def _clipping(record: Record, verdict: Verdict) -> Chart | None:
    found = [event for event in record.of(Clip) if event.norm is not None and event.limit is not None]
    if not found:
        return None
    over = sum(event.norm > event.limit for event in found if event.norm is not None and event.limit is not None)
    lines = [
        _line("norm before clipping", [(event.step, event.norm) for event in found]),
        _line("limit", [(event.step, event.limit) for event in found], Style.LIMIT),
    ]
    limit = median([event.limit for event in found if event.limit is not None])
    healthy = (
        f"Most steps are below the limit, so that it catches rare jumps. Here {over:,} of {len(found):,} measured "
        "steps were clipped."
    )
    band = Band(None, short(limit), "not clipped")
    return Chart(name="clipping", title="Clipping", lines=lines, healthy=healthy, band=band, log=True)


def _scale(record: Record, verdict: Verdict) -> Chart | None:
    known = [(event.step, event.scale) for event in record.of(ScalerUpdate) if event.scale is not None]
    if not known:
        return None
    skipped = list(record.of(StepSkipped))
    marks = [Mark(event.step, "step skipped") for event in skipped[:MOST_MARKS]]
    lines = [_line("loss scale", known, Style.STEPS)]
    healthy = (
        "After a few halvings at the start it stays high, 8,192 to 65,536 or more; one that keeps halving skips steps. "
        f"Skipped here: {len(skipped):,}."
    )
    band = Band(2.0**13, 2.0**17, "usual, 2¹³ to 2¹⁷")
    return Chart(name="scale", title="Loss scale", lines=lines, healthy=healthy, band=band, log=True, marks=marks)


PARTS: tuple[tuple[str, Callable[[Gauges], float | None]], ...] = (
    ("waiting for data", lambda gauge: gauge.data_seconds),
    ("forward", lambda gauge: gauge.forward_seconds),
    ("backward", lambda gauge: gauge.backward_seconds),
    ("optimizer", lambda gauge: gauge.step_seconds),
)


def _time(record: Record, verdict: Verdict) -> Chart | None:
    # The first step also pays for start-up: imports, compilation, allocation.
    gauges = [event for event in record.of(Gauges) if event.seconds is not None][1:]
    if not gauges:
        return None
    rows: list[tuple[str, list[tuple[int, Number]]]] = [
        (label, [(event.step, 1000 * (part(event) or 0.0)) for event in gauges])
        for label, part in PARTS
        if any(part(event) for event in gauges)
    ]
    rest = [(event.step, 1000 * max(0.0, (event.seconds or 0.0) - _known_seconds(event))) for event in gauges]
    rows.append(("everything else", list(rest)))
    chosen, _ = thinned([event.step for event in gauges], [event.seconds for event in gauges], MOST_SAMPLES // 2)
    kept = set(chosen)
    lines = [_line(label, [pair for pair in points if pair[0] in kept], Style.AREA) for label, points in rows]
    usual = 1000 * median([event.seconds for event in gauges if event.seconds is not None])
    waited = median([(event.data_seconds or 0.0) / (event.seconds or 1.0) for event in gauges])
    healthy = (
        f"Steps take equally long, and waiting for data is under a tenth of it. Here the usual step takes {usual:.3g} "
        f"ms, and {waited:.0%} of it waits for data.".replace("%", " %")
    )
    band = Band(0.0, short(1.5 * usual), "up to 1.5 times the usual step")
    longest = max(1000 * event.seconds for event in gauges if event.seconds is not None)
    most = 4 * usual if longest > 8 * usual else None
    healthy += " Single steps go on above the chart." if most else ""
    return Chart(
        name="time",
        title="Time of a step",
        lines=lines,
        healthy=healthy,
        band=band,
        unit="ms",
        from_zero=True,
        most=short(most),
    )


def _known_seconds(gauge: Gauges) -> float:
    return sum(part(gauge) or 0.0 for _, part in PARTS)


def _memory(record: Record, verdict: Verdict) -> Chart | None:
    known = [(event.step, event.memory / 2**20) for event in record.of(Gauges) if event.memory is not None]
    if not known:
        return None
    settled = [value for _, value in known[len(known) // 10 :]]
    usual = median(settled)
    band = Band(short(0.9 * usual), short(1.1 * usual), "usual, within 10 %")
    healthy = "Level after the first steps. A steady rise is a leak, such as losses that are kept with their graphs."
    return Chart(name="memory", title="Memory", lines=[_line("in use", known)], healthy=healthy, band=band, unit="MB")


CHARTS = (_loss, _right, _returns, _rates, _gradients, _clipping, _scale, _time, _memory)
