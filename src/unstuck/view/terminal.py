"""The live view in a terminal, as over SSH: the answer, the loss, the layers, and the other runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from unstuck.findings.curve import Curve
from unstuck.findings.results import NamedCurve
from unstuck.record import RecordError
from unstuck.report.plots import plot
from unstuck.report.terminal import Line, columns_of, show as print_lines
from unstuck.report.text import hanging, wrapped
from unstuck.view.document import Document
from unstuck.view.layers import Heatmap, Layers
from unstuck.view.live import Followed, read_once
from unstuck.view.thin import Number
from unstuck.view.timeline import Style

EVERY = 2.0
"""Seconds between two looks."""
MOST_LAYERS = 12
BAR = 12
STYLES = {"error": "error", "warning": "warning", "good": "command"}
CLEAR = "\x1b[H\x1b[J"
BEGIN, END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def show(path: Path | None, stream: TextIO) -> int:
    """Show the run until it has ended; once, if the stream is not a terminal. Returns the exit code."""
    assert path is not None
    followed = read_once(path)
    if not stream.isatty():
        print_lines(lines(followed, columns_of(stream)), stream)
        return 0
    stream.write(BEGIN)
    try:
        while True:
            shown = lines(followed, columns_of(stream))[: max(4, _rows(stream) - 1)]
            stream.write(CLEAR)
            print_lines(shown, stream)
            stream.flush()
            if followed.document is not None and not followed.document.run.running:
                break
            time.sleep(EVERY)
            followed.refresh()
    except KeyboardInterrupt:
        pass
    finally:
        stream.write(END)
        stream.flush()
    print_lines(lines(followed, columns_of(stream)), stream)
    return 0


def _rows(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).lines
    except (OSError, ValueError):
        return 40


def lines(followed: Followed, width: int) -> list[Line]:
    """Everything there is to show, in so many columns."""
    shown = followed.document
    if shown is None:
        raise RecordError(f"There is no record to show at {followed.folder}.")
    prose = min(width, 100)
    run = shown.run
    state = "is running" if run.running else run.status
    about = " ".join([run.script, *run.arguments]) or run.name
    found: list[Line] = [[(f"{about} ", "strong"), (f"{state}, {run.steps:,} {run.step_name}s", "quiet")]]
    found += wrapped(shown.answer.headline, prose, STYLES.get(shown.answer.tone, "strong"))
    for sentence in shown.answer.sentences[:2]:
        found += wrapped(sentence, prose, "quiet")
    for finding in shown.answer.findings[:6]:
        mark = finding.tone.kind
        found += hanging([(f"{mark} ", mark)], f"{finding.code} {finding.name}: {finding.message}", prose)
    found += [[], *_curves(shown, prose)]
    for name in ("update", "dead"):
        found += _table(shown.layers, name, prose)
    return found


def _curves(shown: Document, width: int) -> Iterator[Line]:
    """The loss, and the right answers if they are known."""
    for chart in shown.timeline[:2]:
        if chart.name not in ("loss", "right", "returns"):
            continue
        curves = [
            NamedCurve(line.label, Curve(tuple(line.steps), tuple(line.values)))
            for line in chart.lines
            if line.style in (Style.LINE, Style.FAINT, Style.POINTS) and len(line.steps) > 1
        ]
        if curves:
            yield [(chart.title, "strong")]
            yield from plot(curves[:3], width - 2)
            yield []


def _table(layers: Layers, name: str, width: int) -> Iterator[Line]:
    """The last number of each layer, those that are farthest from what is healthy first."""
    heat = next((one for one in layers.heatmaps if one.name == name), None)
    if heat is None:
        return
    names = [one.name for one in layers.tensors] if heat.of == "tensors" else layers.activations
    large = [i for i, one in enumerate(layers.tensors) if one.dimensions >= 2] if heat.of == "tensors" else []
    rows = large or list(range(len(names)))
    known = [(row, value) for row in rows if (value := heat.last(row)) is not None]
    known.sort(key=lambda pair: -_distance(heat, pair[1]))
    yield [(heat.title, "strong"), (f"  healthy: {_healthy(heat)}", "quiet")]
    widest = max((len(names[row]) for row, _ in known[:MOST_LAYERS]), default=0)
    for row, value in known[:MOST_LAYERS]:
        is_far = not heat.low <= value <= heat.high
        yield [
            (f"  {names[row][-(width - 30) :]:<{min(widest, width - 30)}} ", ""),
            (f"{_spelled(heat, value):>9} ", "warning" if is_far else ""),
            (_bar(heat, value), "warning" if is_far else "other"),
        ]
    if len(known) > MOST_LAYERS:
        yield [(f"  and {len(known) - MOST_LAYERS} more", "quiet")]
    yield []


def _healthy(heat: Heatmap) -> str:
    if heat.matrix.log:
        return f"{heat.low:.3g} to {heat.high:.3g}"
    return f"up to {100 * heat.high:.0f} %"


def _spelled(heat: Heatmap, value: float) -> str:
    return f"{value:.2e}" if heat.matrix.log else f"{100 * value:.0f} %"


def _distance(heat: Heatmap, value: float) -> float:
    from math import log10

    if not heat.matrix.log:
        return value
    return abs(log10(max(value, 1e-30) / (heat.centre or (heat.low * heat.high) ** 0.5)))


def _bar(heat: Heatmap, value: Number) -> str:
    """Where the number lies: three decades to both sides of the centre, or a share."""
    from math import log10

    if value is None:
        return ""
    if not heat.matrix.log:
        return "#" * round(BAR * value)
    centre = heat.centre or (heat.low * heat.high) ** 0.5
    place = min(1.0, max(0.0, 0.5 + log10(max(value, 1e-30) / centre) / 6))
    cells = ["-"] * (BAR + 1)
    cells[BAR // 2] = "|"
    cells[round(BAR * place)] = "#"
    return "".join(cells)
