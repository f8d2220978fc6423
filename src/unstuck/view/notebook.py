"""The essence of the page for a notebook: the answer, the loss, the findings, a heatmap. HTML without a script, since
notebooks run none that they do not trust, and a picture stays what it was when the notebook is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from unstuck.findings.investigation import Investigation
from unstuck.findings.result import Result
from unstuck.record import Record
from unstuck.view import png
from unstuck.view.answer import Answer, FindingPart, answer_of
from unstuck.view.layers import Heatmap, Layers, layers
from unstuck.view.thin import Number
from unstuck.view.timeline import Chart, ChartLine, Style, timeline

WIDTH, HEIGHT = 640, 190
LEFT, BOTTOM, TOP = 56, 20, 8
"""Margins of the chart, for the ticks."""
MOST_FINDINGS = 8
MOST_ROWS = 24
ROW = 14
"""Pixels of a row of the heatmap."""
MOST_COLUMNS = 300
LOW, MIDDLE, HIGH = (33, 102, 172), (247, 247, 247), (191, 87, 0)
"""As in the page: blue is too little, orange too much."""
MISSING = (200, 200, 200)
DECADES = 2.0
"""How far from the centre, in powers of ten, a colour is at its deepest."""
TONES = {"error": "#e23629", "warning": "#c85716", "advice": "#3074e8", "good": "#0f8a56"}
"""Each has the contrast 4.3 to white and to black: a notebook may be light or dark."""
STROKES = {
    Style.LINE: ("#0072b2", 1.5, 1.0),
    Style.FAINT: ("#0072b2", 1.0, 0.35),
    Style.TREND: ("#0072b2", 2.0, 1.0),
    Style.POINTS: ("#d55e00", 1.5, 1.0),
    Style.LIMIT: ("#888888", 1.0, 1.0),
}


def essence(result: Result, record: Record, folder: Path) -> str:
    """One run, as it is now."""
    done = Investigation(result=result, folder=folder)
    charts = timeline(record, result.verdict)
    loss = next((chart for chart in charts if chart.name == "loss"), None)
    table = layers(record)
    parts = [*_head(answer_of(done, record, [], {}), result)]
    parts += [_chart(loss)] if loss is not None and any(len(line.steps) > 1 for line in loss.lines) else []
    heat = next((one for one in table.heatmaps if one.name == "update"), None)
    parts += [_heatmap(heat, table)] if heat is not None else []
    where = result.run.record if result.run is not None else ""
    parts += [f'<div style="color:#888;font-size:12px">{_code(f"unstuck view {where}")} shows all of it.</div>']
    return f'<div style="font:14px/1.4 system-ui,sans-serif;max-width:{WIDTH + 20}px">{"".join(parts)}</div>'


def _head(answer: Answer, result: Result) -> Iterator[str]:
    colour = TONES.get(answer.tone, "inherit")
    yield f'<div style="font-weight:600;color:{colour}">{escape(answer.headline)}</div>'
    run = result.run
    state = [] if run is None else [f"{run.steps:,} {run.step_name}{'' if run.steps == 1 else 's'}, {run.status}"]
    for sentence in (*state, *answer.sentences[:2]):
        yield f'<div style="color:#888">{escape(sentence)}</div>'
    for finding in answer.findings[:MOST_FINDINGS]:
        yield _finding(finding)
    if len(answer.findings) > MOST_FINDINGS:
        yield f'<div style="color:#888">and {len(answer.findings) - MOST_FINDINGS} more findings</div>'


def _finding(finding: FindingPart) -> str:
    colour = TONES.get(finding.tone.kind, "inherit")
    change = next((part.text for part in finding.fix if not part.code), "")
    place = f" {_code(finding.place)}" if finding.place else ""
    return (
        f'<details style="margin:4px 0"><summary><b style="color:{colour}">{escape(finding.tone.word)} '
        f"{escape(finding.code)} {escape(finding.name)}</b>{place}: {escape(finding.message)}</summary>"
        f'<div style="margin:2px 0 6px 18px">{escape(finding.cause)}<br><b>Change:</b> {escape(change)} '
        f"{_code(finding.docs)}</div></details>"
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>" if text else ""


def _chart(chart: Chart) -> str:
    """The lines of a chart over the steps."""
    lines = [line for line in chart.lines if line.style in STROKES and line.steps]
    values = [v for line in lines for v in line.values if v is not None and math.isfinite(v)]
    steps = [step for line in lines for step in (line.steps[0], line.steps[-1])]
    if not values:
        return ""
    is_log = chart.log and min(values) > 0
    low, high = (math.log10(end) if is_log else end for end in (min(values), max(values)))
    first, last = min(steps), max(steps)

    def place(step: int, value: float) -> str:
        across = (step - first) / ((last - first) or 1)
        up = ((math.log10(value) if is_log else value) - low) / ((high - low) or 1)
        return f"{LEFT + across * (WIDTH - LEFT - 4):.1f},{TOP + (1 - up) * (HEIGHT - TOP - BOTTOM):.1f}"

    drawn = [shape for line in lines for shape in _line(line, place)]
    ends = [(min(values), HEIGHT - BOTTOM), (max(values), TOP + 8)] if high > low else [(values[0], HEIGHT // 2)]
    ticks = [_text(LEFT - 6, y, f"{value:.3g}", "end") for value, y in ends]
    ticks += [_text(LEFT, HEIGHT - 4, f"{first:,}", "start"), _text(WIDTH - 4, HEIGHT - 4, f"step {last:,}", "end")]
    title = escape(f"{chart.title}: {', '.join(dict.fromkeys(line.label for line in lines))}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" style="max-width:100%;display:block;margin:6px 0" '
        f'role="img" aria-label="{title}"><title>{title}</title>'
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - 4}" fill="none" stroke="#888" stroke-width="0.6"/>'
        f"{''.join(drawn)}{''.join(ticks)}</svg>{_legend(lines)}"
    )


def _legend(lines: Sequence[ChartLine]) -> str:
    """What is not a loss of the training itself."""
    shapes = {Style.POINTS: "dots", Style.LIMIT: "dashes"}
    words = [f"{shapes[line.style]}: {line.label}" for line in lines if line.style in shapes]
    return f'<div style="color:#888;font-size:12px">{escape(", ".join(words))}</div>' if words else ""


def _line(line: ChartLine, place: Callable[[int, float], str]) -> Iterator[str]:
    """A line is broken where a value is missing."""
    colour, width, opacity = STROKES[line.style]
    known = [
        (s, v) if v is not None and math.isfinite(v) else None for s, v in zip(line.steps, line.values, strict=True)
    ]
    if line.style is Style.POINTS:
        for point in known:
            if point is not None:
                x, _, y = place(*point).partition(",")
                yield f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>'
        return
    pieces: list[list[str]] = [[]]
    for point in known:
        if point is None:
            pieces.append([])
        else:
            pieces[-1].append(place(*point))
    dash = ' stroke-dasharray="4 3"' if line.style is Style.LIMIT else ""
    look = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"{dash}'
    for piece in pieces:
        if piece:
            points = " ".join(piece if len(piece) > 1 else piece * 2)
            yield f'<polyline points="{points}" {look}/>'


def _text(x: int, y: int, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="#888">{escape(text)}</text>'


def _heatmap(heat: Heatmap, table: Layers) -> str:
    """A row for each of the largest weights, in the order in which they run."""
    ranked = sorted(range(len(table.tensors)), key=lambda row: -table.tensors[row].size * table.tensors[row].dimensions)
    rows = sorted(row for row in ranked[:MOST_ROWS] if heat.last(row) is not None)
    if not rows:
        return ""
    cells = [heat.matrix.row(row)[-MOST_COLUMNS:] for row in rows]
    width = len(cells[0])
    pixels = b"".join(bytes(_colour(value, heat.centre or 1e-3)) for line in cells for value in line)
    names = "".join(
        f'<div style="height:{ROW}px;overflow:hidden;white-space:nowrap">{escape(table.tensors[row].name[-30:])}</div>'
        for row in rows
    )
    more = len(table.tensors) - len(rows)
    left_out = f" The {len(rows)} largest of {len(table.tensors)} tensors." if more > 0 else ""
    return (
        f'<div style="font-weight:600">{escape(heat.title)}</div>'
        f'<div style="color:#888;font-size:12px">{escape(heat.healthy)} Blue is less, orange more.{left_out}</div>'
        f'<div style="display:flex;font-size:11px;line-height:{ROW}px;margin:4px 0"><div style="padding-right:8px">'
        f'{names}</div><img alt="{escape(heat.title)}" src="{png.data_uri(width, len(rows), 3, pixels)}" style="width:'
        f'{WIDTH - 200}px;height:{ROW * len(rows)}px;image-rendering:pixelated;flex:0 1 auto;min-width:0"/></div>'
    )


def _colour(value: Number, centre: float) -> Sequence[int]:
    if value is None:
        return MISSING
    share = max(-1.0, min(1.0, math.log10(max(value, 1e-30) / centre) / DECADES))
    end = HIGH if share > 0 else LOW
    return [round(middle + abs(share) * (deep - middle)) for middle, deep in zip(MIDDLE, end, strict=True)]
